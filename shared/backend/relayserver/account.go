package relayserver

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// account collects the cost of one frame of a runner, and tells the observer if there is a
// Meter.
type account struct {
	config Config
	begun  time.Time
	conn   string
	size   int
	proven bool // the frame really comes from the box that it names
	inside bool // it comes from a box of this program, and needs no log line
	// These come from the opened tickets: the session of the first, and the traces of all.
	session storage.ID
	traces  []string
	ended   []observe.Ended // calls whose end no function waits for
}

// maxWhy is the longest reason in a log line, in bytes.
const maxWhy = 500

// over notes the ends of calls in a batch, for the log line. It notes only calls whose
// events are pushed, over a WebSocket or a stream of HTTP+SSE: no function waits for
// these ends. show says whether the reasons of failed calls may repeat what the server
// answered.
func over(ctx context.Context, p sessions.Published, show bool) {
	a, ok := ctx.Value(gathering{}).(*account)
	if !ok || !p.Batch.Final || p.To.Conn == "" && !p.To.LegacySSE || len(p.Batch.Events) == 0 {
		return
	}
	last := p.Batch.Events[len(p.Batch.Events)-1]
	if !wire.Valid(last) {
		return // a hostile runner sent it
	}
	failed, why := sessions.FailureOf(last, show)
	if failed && why == "" {
		why = "the tool reported an error"
	}
	a.ended = append(a.ended, observe.Ended{Stream: p.Batch.Stream, Why: strings.ToValidUTF8(why[:min(len(why), maxWhy)], ""), Response: last})
}

type gathering struct{}

// gather returns a context in which [proven] and [opened] find the account.
func (a *account) gather(ctx context.Context) context.Context {
	return context.WithValue(ctx, gathering{}, a)
}

// maxTraces is the largest number of traces in the log line of a frame.
const maxTraces = 20

// proven records that the current frame really comes from the box that it names.
func proven(ctx context.Context) {
	if a, ok := ctx.Value(gathering{}).(*account); ok {
		a.proven = true
	}
}

// opened records that the current frame has ticket t, which also proves its box. The log
// line charges the frame to the session of a ticket, never to a session that a frame only
// names.
func opened(ctx context.Context, t Ticket) {
	a, ok := ctx.Value(gathering{}).(*account)
	if !ok {
		return
	}
	a.proven, a.session = true, cmp.Or(a.session, t.Session)
	if t.Trace != "" && len(a.traces) < maxTraces && !slices.Contains(a.traces, t.Trace) {
		a.traces = append(a.traces, t.Trace)
	}
}

// proves reports whether the host gives this answer only to the runner of the named
// box.
func proves(reply frame.Frame) bool {
	switch reply.(type) {
	case frame.Welcome, frame.Pulled, frame.ByeOK:
		return true
	default:
		return false
	}
}

// end tells the observer, and returns err. A frame without a ticket, a token or the
// runner's id is charged to no tenant, whatever it claims.
func (a *account) end(ctx context.Context, f frame.Frame, reply []byte, err error) error {
	c := a.config
	if c.Meter == nil {
		return err
	}
	e := &observe.Event{
		Kind: observe.Frame, Conn: a.conn, Trace: storage.TraceOf(ctx), Ended: a.ended, Traces: a.traces,
		Account: storage.Account{Over: storage.OverRelay, In: a.size, Out: len(reply), Took: time.Since(a.begun), Code: storage.CodeOf(err)},
	}
	if f != nil {
		e.Type = frame.Clip(string(frame.Kind(f)))
		if f, ok := f.(frame.FromRunner); ok {
			e.Box = f.From().Box
		}
	}
	if a.proven {
		e.Tenant, e.Server = e.Box.Parts()
		e.Session = a.session
	}
	switch {
	case err != nil:
		e.Level, e.Error = slog.LevelWarn, err.Error()
	case a.inside:
		e.Level = slog.LevelDebug
	}
	c.Observer.Tell(ctx, c.Meter, e)
	return err
}

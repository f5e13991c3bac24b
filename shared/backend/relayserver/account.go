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

// account gathers what the observer is told of one frame of a runner.
type account struct {
	config  *Config
	begun   time.Time
	conn    string          // the connection of the runner
	size    int             // bytes of the frame
	proven  bool            // the frame really comes from the box that it names
	inside  bool            // the frame comes from a box of this program, and needs no log line
	session storage.ID      // of the first ticket that was opened
	traces  []string        // of all opened tickets
	ended   []observe.Ended // calls whose end no instance waits for
}

// maxWhy is the longest reason in a log line, in bytes.
const maxWhy = 500

// addEnd adds the end of a call, if the batch p has one. It leaves out a call whose events are not
// pushed: an instance waits for its end and reports it.
// show permits the reason of a failed call to repeat what the server answered.
func (a *account) addEnd(p sessions.Published, show bool) {
	if !p.Batch.Final || p.To.Conn == "" && !p.To.LegacySSE || len(p.Batch.Events) == 0 {
		return
	}
	last := p.Batch.Events[len(p.Batch.Events)-1]
	if !wire.Valid(last) {
		return // only a hostile runner sends an event that is not JSON
	}
	failed, why := sessions.FailureOf(last, show)
	if failed && why == "" {
		why = "the tool reported an error"
	}
	a.ended = append(a.ended, observe.Ended{Stream: p.Batch.Stream, Why: strings.ToValidUTF8(why[:min(len(why), maxWhy)], ""), Response: last})
}

// maxTraces is the largest number of traces in the log line of a frame.
const maxTraces = 20

// opened records that the frame has ticket t, which also proves that the frame comes from
// its box. A frame is charged to the session of its ticket, never to one that it only names.
func (a *account) opened(t Ticket) {
	a.proven, a.session = true, cmp.Or(a.session, t.Session)
	a.trace(t.Trace)
}

// trace adds the name that a request has in logs (see storage.WithTrace), unless it is "".
func (a *account) trace(t string) {
	if t != "" && len(a.traces) < maxTraces && !slices.Contains(a.traces, t) {
		a.traces = append(a.traces, t)
	}
}

// end reports the frame to the observer if [Config].Meter counts frames, and returns err. f is nil
// if the frame could not be read. A frame that is not proven is charged to no tenant, whatever it
// claims.
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

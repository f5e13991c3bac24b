package relayserver

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// account collects the cost of one frame of a runner, and writes its log line if there is
// a Meter.
type account struct {
	config Config
	begun  time.Time
	conn   string
	size   int
	proven bool // the frame really comes from the box that it names
	// These come from the opened tickets: the session of the first, and the traces of all.
	session storage.ID
	traces  []string
	ended   []endedCall // calls whose end no function waits for
}

// endedCall is the end of a call in a log line.
type endedCall struct {
	Stream storage.StreamID `json:"stream"`
	Why    string           `json:"why,omitempty"` // why the call failed; see sessions.FailureOf
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
	a.ended = append(a.ended, endedCall{p.Batch.Stream, strings.ToValidUTF8(why[:min(len(why), maxWhy)], "")})
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

// end writes the log line and returns err. A frame without a ticket, a token or the
// runner's id is charged to no tenant, whatever it claims.
func (a *account) end(ctx context.Context, f frame.Frame, reply []byte, err error) error {
	c := a.config
	if c.Meter == nil {
		return err
	}
	who := storage.Account{Over: storage.OverRelay, In: a.size, Out: len(reply), Took: time.Since(a.begun), Code: storage.CodeOf(err)}
	var kind frame.Type
	var box storage.BoxID
	if f != nil {
		kind = frame.Kind(f)
		if f, ok := f.(frame.FromRunner); ok {
			box = f.From().Box
		}
	}
	if a.proven {
		who.Tenant, who.Server = box.Parts()
		who.Session = a.session
	}
	attrs := []any{
		"type", frame.Clip(string(kind)), "server", who.Server, "session_id", who.Session, "connection_id", a.conn,
		"duration_ms", who.Took.Milliseconds(),
	}
	if box != "" {
		attrs = append(attrs, "box", box)
	}
	if trace := storage.TraceOf(ctx); trace != "" {
		attrs = append(attrs, "trace", trace)
	}
	if len(a.ended) > 0 {
		attrs = append(attrs, "ended", a.ended)
	}
	if len(a.traces) > 0 {
		attrs = append(attrs, "traces", a.traces)
	}
	level := slog.LevelInfo
	if err != nil {
		level = slog.LevelWarn
		attrs = append(attrs, "code", who.Code, "error", err)
	}
	c.Log.Log(ctx, level, "frame", append(attrs, c.Meter.Spent(who)...)...)
	return err
}

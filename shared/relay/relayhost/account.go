package relayhost

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// account is the cost of one frame of a runner, and its log line. The line is written
// if there is a Meter.
type account struct {
	h      *Handler
	begun  time.Time
	conn   string
	size   int
	proven bool // the frame comes from the box it names
	// From the tickets that were opened: the session of the first, and the traces of
	// all.
	session session.ID
	traces  []string
}

func (h *Handler) account(conn string, data []byte) *account {
	return &account{h: h, begun: time.Now(), conn: conn, size: len(data)}
}

type gathering struct{}

// gather returns a context in which [proven] and [opened] find the account.
func (a *account) gather(ctx context.Context) context.Context {
	return context.WithValue(ctx, gathering{}, a)
}

// maxTraces is the largest number of traces in the log line of a frame.
const maxTraces = 20

// proven notes that the frame under way comes from the box it names.
func proven(ctx context.Context) {
	if a, ok := ctx.Value(gathering{}).(*account); ok {
		a.proven = true
	}
}

// opened notes that the frame under way has ticket t, which also proves its box. A
// session without a ticket is not believed, because the frame would be charged to that
// session.
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
	h := a.h
	if h.Meter == nil {
		return err
	}
	who := session.Account{Over: session.OverRelay, Conn: a.conn, In: a.size, Out: len(reply), Took: time.Since(a.begun), Code: session.CodeOf(err)}
	var kind frame.Type
	var box session.BoxID
	if f != nil {
		kind = f.Kind()
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
	if trace := session.TraceOf(ctx); trace != "" {
		attrs = append(attrs, "trace", trace)
	}
	if len(a.traces) > 0 {
		attrs = append(attrs, "traces", a.traces)
	}
	level := slog.LevelInfo
	if err != nil {
		level = slog.LevelWarn
		attrs = append(attrs, "code", who.Code, "error", err)
	}
	h.Log.Log(ctx, level, "frame", append(attrs, h.Meter.Spent(who)...)...)
	return err
}

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

// account is what one frame of a runner costs, and its log line, which is written when
// somebody counts.
type account struct {
	h      *Handler
	begun  time.Time
	conn   string
	size   int
	proven bool // the frame is from the box it names
	// Of the tickets that were opened: the session of the first, and their requests.
	session session.ID
	traces  []string
}

func (h *Handler) account(conn string, data []byte) *account {
	return &account{h: h, begun: time.Now(), conn: conn, size: len(data)}
}

type gathering struct{}

// gather has [proven] and [opened] find the account.
func (a *account) gather(ctx context.Context) context.Context {
	return context.WithValue(ctx, gathering{}, a)
}

// maxTraces is how many requests the line of a frame names.
const maxTraces = 20

// proven says that the frame under way is from the box it names.
func proven(ctx context.Context) {
	if a, ok := ctx.Value(gathering{}).(*account); ok {
		a.proven = true
	}
}

// opened says that besides it has this ticket. What a frame says of its session
// without one is not believed: it would be in that session's bill.
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

// proves says that an answer is given only to the runner of the box that was named.
func proves(reply frame.Frame) bool {
	switch reply.(type) {
	case frame.Welcome, frame.Pulled, frame.ByeOK:
		return true
	default:
		return false
	}
}

// end writes the line and passes the error on. What somebody claims to be without a
// ticket, a token or the runner's id is in nobody's bill.
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

package front

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// counter counts the bytes of a response's body.
type counter struct {
	http.ResponseWriter
	bytes int
}

// Write passes on and counts.
func (c *counter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.bytes += n
	return n, err
}

// Unwrap is for http.ResponseController.
func (c *counter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// attrsOf takes pairs of name and value as attributes.
func attrsOf(pairs []any) []slog.Attr {
	var r slog.Record
	r.Add(pairs...)
	all := make([]slog.Attr, 0, r.NumAttrs())
	r.Attrs(func(a slog.Attr) bool { all = append(all, a); return true })
	return all
}

// traced is the attribute that names a request in all logs.
func traced(ctx context.Context) []slog.Attr {
	if trace := session.TraceOf(ctx); trace != "" {
		return []slog.Attr{slog.String("trace", trace)}
	}
	return nil
}

// spent is what the log line of a request says of its costs, with its name.
func (x *exchange) spent() []slog.Attr {
	attrs := traced(x.ctx())
	if x.opts.Meter == nil {
		return attrs
	}
	return append(attrs, attrsOf(x.opts.Meter.Spent(session.Account{
		Over: session.OverREST, Tenant: x.caller.Tenant, Server: x.caller.Server.Name, Session: x.session,
		Poll: x.r.Method == http.MethodGet, In: int(max(0, x.r.ContentLength)), Out: x.sent.bytes,
		Took: time.Since(x.begun), Code: session.CodeOf(x.err),
	}))...)
}

// spent is what the log line of an invocation says of its costs, with its name.
func (x *turn) spent(ctx context.Context) []slog.Attr {
	attrs := traced(ctx)
	if x.opts.Meter == nil {
		return attrs
	}
	over := session.OverSocket
	if x.what == "push" {
		over = session.OverEvent
	}
	return append(attrs, attrsOf(x.opts.Meter.Spent(session.Account{
		Over: over, Tenant: x.tenant, Server: x.server, Session: x.session, Conn: x.conn,
		In: x.in, Out: x.out, Took: time.Since(x.begun), Code: session.CodeOf(x.err),
	}))...)
}

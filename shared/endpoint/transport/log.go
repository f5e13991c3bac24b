package transport

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func attrsOf(pairs []any) []slog.Attr {
	var r slog.Record
	r.Add(pairs...)
	all := make([]slog.Attr, 0, r.NumAttrs())
	r.Attrs(func(a slog.Attr) bool { all = append(all, a); return true })
	return all
}

// traced returns the attribute that names a request in all logs.
func traced(ctx context.Context) []slog.Attr {
	if trace := storage.TraceOf(ctx); trace != "" {
		return []slog.Attr{slog.String("trace", trace)}
	}
	return nil
}

// log writes the one line of this request. The line has no body and no id of a message.
// Of the headers it has only the session's.
func (x *exchange) log(more ...slog.Attr) {
	level := slog.LevelInfo
	attrs := append(make([]slog.Attr, 0, 16),
		slog.String("http_method", wire.Clip(x.r.Method)),
		slog.String("server", x.caller.Server.Name),
		slog.Int("status", x.status),
		slog.String("rpc_method", wire.Clip(x.method)),
		slog.String("rpc_id", kindOf(x.id)),
		slog.String("session_id", string(x.session)),
		slog.Int64("duration_ms", time.Since(x.begun).Milliseconds()),
	)
	if x.err != nil {
		level = slog.LevelWarn
		attrs = append(attrs, slog.String("code", string(storage.CodeOf(x.err))))
		if x.status >= http.StatusInternalServerError {
			level = slog.LevelError
		}
		// The text of a refusal adds nothing to its code, and may repeat what the client
		// sent.
		if x.status < http.StatusBadRequest || x.status >= http.StatusInternalServerError {
			attrs = append(attrs, slog.String("error", x.err.Error()))
		}
	}
	attrs = append(attrs, x.called.attrs(x.ctx(), senderOf(x.r, x.caller, askedBy(x.r.URL.Path)), x.err)...)
	attrs = append(append(attrs, more...), x.spent()...)
	x.opts.Log.LogAttrs(context.WithoutCancel(x.ctx()), level, "request", attrs...)
}

func kindOf(id json.RawMessage) string {
	switch {
	case len(id) == 0:
		return "none"
	case id[0] == '"':
		return "string"
	default:
		return "number"
	}
}

// spent returns log attributes with the trace and the costs of a request.
func (x *exchange) spent() []slog.Attr {
	attrs := traced(x.ctx())
	if x.opts.Meter == nil {
		return attrs
	}
	return append(attrs, attrsOf(x.opts.Meter.Spent(storage.Account{
		Over: storage.OverREST, Tenant: x.caller.Tenant, Principal: x.caller.Principal, Server: x.caller.Server.Name, Session: x.session,
		Poll: x.r.Method == http.MethodGet, In: int(max(0, x.r.ContentLength)), Out: x.sent.bytes,
		Took: time.Since(x.begun), Code: storage.CodeOf(x.err),
	}))...)
}

package transport

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// tell reports this request, which has ended, to the Observer.
func (x *exchange) tell(stack string) {
	e := &observe.Event{
		Kind: observe.Request, HTTPMethod: wire.Clip(x.r.Method), Status: x.status, RPCMethod: wire.Clip(x.method), RPCID: kindOf(x.id),
		Trace: storage.TraceOf(x.ctx()), Stack: stack,
		Account: storage.Account{
			Over: storage.OverREST, Tenant: x.caller.Tenant, Principal: x.caller.Principal, Server: x.caller.Server.Name, Session: x.session,
			Poll: x.r.Method == http.MethodGet, In: int(max(0, x.r.ContentLength)), Took: time.Since(x.begun), Code: storage.CodeOf(x.err),
		},
	}
	if x.sent != nil {
		e.Out = x.sent.bytes
	}
	if x.err != nil {
		e.Level = slog.LevelWarn
		if x.status >= http.StatusInternalServerError && !errors.Is(x.ctx().Err(), context.Canceled) { // a client that has gone is no error
			e.Level = slog.LevelError
		}
		// The text of a refusal adds nothing to its code, and may repeat what the client
		// sent.
		if x.status < http.StatusBadRequest || x.status >= http.StatusInternalServerError {
			e.Error = x.err.Error()
		}
	}
	x.called.tell(x.ctx(), e, senderOf(x.r, x.caller.Identity, askedBy(x.r.URL.Path)), x.err)
	x.opts.Observer.Tell(x.ctx(), x.opts.Meter, e)
	x.opts.outlive(x.ctx(), &x.called, e)
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

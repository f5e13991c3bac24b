package native

import (
	"context"
	"encoding/json"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Remote is a server that runs elsewhere. This package treats it as a server in Go: it
// sends each request in the modern era, stores what comes back, and ends the call in
// rounds. It is safe for concurrent use.
type Remote interface {
	// Send has the server answer one request. It returns when the request has its answer,
	// when the server asks its client (the result is then a call for input), or soon after
	// ctx has ended.
	Send(ctx context.Context, r RemoteRequest) (result json.RawMessage, fault *wire.Error)
}

// RemoteRequest is one request to a [Remote].
type RemoteRequest struct {
	Session Session
	Method  string
	Params  json.RawMessage // of the modern era
	Init    json.RawMessage // what the client says of itself, as params of initialize
	Legacy  bool            // the client is of the legacy era
	// Once says that the session is not in the store, so nothing of it may be kept.
	Once bool
	// Secrets is what the caller has at third parties. It is nil in a later round, in which
	// no caller is present.
	Secrets map[string]session.Secret
	// Say adds a notification of the server to the log of the request. It may be called
	// until Send returns.
	Say func(notification []byte)
	// Note says with which requestState another function can go on with the request, if
	// this one dies. That function gets what the server said after the notifications so
	// far.
	Note func(state string)
}

// remote sends one request to a server that runs elsewhere.
func (c *call) remote(method string, params json.RawMessage, in *inside) (json.RawMessage, *wire.Error) {
	ctx, cancel := context.WithCancel(c.r.ctx)
	defer cancel()
	c.mu.Lock()
	c.abort = cancel
	if c.closed {
		cancel()
	}
	c.mu.Unlock()
	return in.server.Remote.Send(ctx, RemoteRequest{
		Session: Session{in}, Method: method, Params: params, Secrets: in.secrets, Say: c.r.repeat, Note: c.note,
		Init: in.record.Init, Legacy: !c.modern(), Once: c.r.address.Stream == "",
	})
}

// repeat is say for a server that may say again what is in the log.
func (r *run) repeat(raw []byte) {
	if !r.said.skipped() {
		r.say(raw)
	}
}

// note keeps a state of the request for the item of its run.
func (c *call) note(state string) {
	if len(c.r.calls) != 1 || c.m.Method != wire.MethodToolsCall {
		return // a batch cannot go on in parts; other requests are cheap to send again
	}
	own, _ := json.Marshal(state) // a string
	c.r.said.note(bridge.Retry(c.m.Raw, own))
}

// subscribes sends a legacy client's resources/subscribe or its opposite to a server that
// runs elsewhere.
func (c *call) subscribes() *wire.Error {
	in := *c.r.in
	in.init, in.method = in.record.Init, c.m.Method
	_, fault := c.remote(c.m.Method, c.params(), &in)
	return fault
}

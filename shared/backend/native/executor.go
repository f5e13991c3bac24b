package native

import (
	"context"
	"encoding/json"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// Executor is a server that runs elsewhere. This package sends it each request with protocol
// version 2026-07-28, as it does with a server in Go. An Executor is safe for concurrent use.
type Executor interface {
	// Send has the server answer one request. It returns when the request has its answer, or
	// soon after ctx has ended. The cause of that end is a [Cancelled] if the client has said it.
	Send(ctx context.Context, r Request) Answer
	// Tell passes on a notification of the client, which is Method with Params. If a legacy
	// client's roots have changed, Tell waits a moment for the server's questions about them.
	Tell(ctx context.Context, r Request)
	// Forward passes on a client's response to a question that came by Ask or Apart. name is
	// what [storage.Forwards] returns. Errors: storage.Unavailable; Forward may be called
	// again.
	Forward(ctx context.Context, r Request, name string, response []byte) error
}

// Cancelled is the notifications/cancelled of a client, as the cause (context.Cause) of the end of a
// context.
type Cancelled []byte

// Error implements error.
func (Cancelled) Error() string { return "the client has cancelled the request" }

// Answer is what a server answers: Result or Fault, as in protocol version 2026-07-28. A result with
// resultType input_required asks the client. Between a legacy client and a legacy server there is
// Whole or Asks in their place, or Fault if the server has not answered.
type Answer struct {
	Result json.RawMessage
	Fault  *wire.Error
	Whole  []byte   // the JSON-RPC response, which the client gets with its own id
	Asks   [][]byte // JSON-RPC requests to the client, which gets them with other ids; their ids are strings
	State  string   // the requestState with which the request is sent again when Asks are answered
}

// Request is one request to an [Executor].
type Request struct {
	Session Session
	Method  string
	Params  json.RawMessage // as in protocol version 2026-07-28
	Raw     []byte          // the message as a legacy client wrote it; nil for a modern client
	Init    json.RawMessage // what the client says about itself, as params of initialize
	Legacy  bool            // the client speaks an older protocol version
	// Once says that the session is not in the store, so the Executor must keep nothing
	// about it.
	Once bool
	// Secrets are the keys and tokens that the caller has at third parties. nil: no caller is
	// present, because the call goes on after an answer or a pause.
	Secrets map[string]storage.Secret
	// Say adds a notification of the server to the log of the request. Say may be called
	// until Send returns.
	Say func(notification []byte)
	// Ask adds a question of the server to the log of the request, as Say does, and has it
	// written at once. The question's id is one of [storage.ForwardID]. Only a legacy client
	// can get it.
	Ask func(question []byte)
	// Apart adds a message of the server to the standalone stream of the session.
	Apart func(ctx context.Context, message []byte) error
	// Note stores a requestState with which another instance can go on with the request, if
	// this one dies. The Executor of that instance may repeat notifications that came after
	// the Note.
	Note func(state string)
}

// remote sends one request to a server that runs elsewhere.
func (c *call) remote(method string, params json.RawMessage, in *environment) Answer {
	ctx, cancel := context.WithCancelCause(c.r.ctx)
	defer cancel(nil)
	c.mu.Lock()
	c.abort = cancel
	if c.closed {
		cancel(context.Cause(c.r.stopped))
	}
	c.mu.Unlock()
	r := in.remote(method, params, c.m.Raw)
	r.Say, r.Ask, r.Note, r.Once = c.r.repeat, c.r.urge, c.note, c.r.address.Stream == ""
	return in.server.Remote.Send(ctx, r)
}

// remote returns a request to the server, without the fields that need a run: Say, Ask,
// Note and Once.
func (in *environment) remote(method string, params json.RawMessage, raw []byte) Request {
	if in.record.Transport == storage.Modern {
		raw = nil
	}
	return Request{
		Session: Session{in}, Method: method, Params: params, Raw: raw, Secrets: in.secrets,
		Init: in.record.Init, Legacy: in.record.Transport != storage.Modern,
		Apart: func(ctx context.Context, message []byte) error { return in.k.tell(ctx, in.record, message) },
	}
}

// repeat does what say does, but drops an event that the server has sent again and that is
// already in the log. repeat waits while too many events are unwritten.
func (r *run) repeat(raw []byte) {
	if !r.said.skipped(raw) {
		r.said.room(r.stopped.Done(), r.over)
		r.say(raw)
	}
}

// urge does what say does, and has the event written at once: it is a question, and the server
// waits for the answer.
func (r *run) urge(question []byte) {
	r.say(question)
	r.said.hurry()
}

// tells passes on notifications to a server that runs elsewhere: those of extensions, and all of a
// legacy client that Dormouse does not serve itself. The invocation lasts until the server has them.
func (k *Backend) tells(ctx context.Context, d sessions.Delivery, server Hosted, msgs []wire.Message) {
	for _, m := range msgs {
		passes := d.Client.Transport != storage.Modern && m.Method != wire.NotifyInitialized && m.Method != wire.NotifyCancelled
		if server.Remote == nil || m.Kind != wire.Notification || !passes && !wire.OfExtension(m.Method) {
			continue
		}
		in, ended := &environment{k: k, record: d.Client, server: server}, begun(ctx)
		go func() {
			defer ended()
			server.Remote.Tell(context.WithoutCancel(ctx), in.remote(m.Method, m.Params, m.Raw))
		}()
	}
}

// forward passes on the answer to a question that a server elsewhere keeps open.
func (k *Backend) forward(ctx context.Context, a storage.Answer, name string) error {
	s, _, err := k.Store.Load(ctx, a.Session, "")
	if err != nil {
		return err
	}
	server, ok := k.Servers(s.Server)
	if !ok || server.Remote == nil {
		return nil
	}
	in := &environment{k: k, record: s, server: server}
	return server.Remote.Forward(ctx, in.remote("", nil, nil), name, a.Raw)
}

// note keeps a requestState. The run writes the state into the request's item, so that another
// instance can go on with the request.
func (c *call) note(state string) {
	if len(c.r.calls) != 1 || c.m.Method != wire.MethodToolsCall {
		return // a batch cannot go on in parts; other requests are cheap to send again
	}
	own, _ := json.Marshal(state) // cannot fail: it is a string
	c.r.said.note(bridge.Retry(c.m.Raw, own))
}

// subscribes sends a legacy client's resources/subscribe or resources/unsubscribe to a
// server that runs elsewhere.
func (c *call) subscribes() Answer {
	in := *c.r.in
	in.init, in.method = in.record.Init, c.m.Method
	return c.remote(c.m.Method, c.params(), &in)
}

package front

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Sealer seals the state that a client carries from one round of a call to the next.
// session.Sealer is one.
type Sealer interface {
	Seal(plain []byte) string
	Open(sealed string) (plain []byte, ok bool)
}

// modern is a request of the modern era (MCP 2026-07-28) at the server that it is for. The
// request has all that is needed to serve it, and its own response answers it. Package bridge
// and Host.Send translate it; modern adds the HTTP part. It ignores a session id and a
// Last-Event-ID, and sends none.
type modern struct {
	x   *exchange
	ctx context.Context
	req bridge.Request
	to  host.Dispatched
}

func newModern(x *exchange, ctx context.Context, req bridge.Request, to host.Dispatched) modern {
	req.Message = to.Message
	if !x.servesTasks(to.Caller) {
		req = req.WithoutTasks()
	}
	if x.opts.Sealer == nil {
		req = req.WithoutQuestions()
	}
	return modern{x, ctx, req, to}
}

// serveModern does the checks of the modern era and serves what was posted. Its checks
// come after the JSON-RPC checks in the list of checks (the ladder) in validate.go:
//
//	batch, response               400 -32600  serveModern
//	notification                  202         (only those of extensions mean anything; at a group each member gets them)
//	header missing or different   400 -32020  checkHeaders; those of arguments last, bridge.CheckParams
//	version                       400 -32022
//	method                        404 -32601
//	_meta                         400 -32602  bridge.ReadRequest
//	client capability             400 -32021  bridge.Turn
//	any error of the server       by statusOf
func serveModern(x *exchange, msgs []wire.Message, batch bool) error {
	endpoint, msg := x.at(session.Modern), msgs[0]
	x.caller = endpoint.Caller()
	x.session = host.PinnedID(x.caller)
	switch {
	case batch:
		return session.Errorf(session.Invalid, "version %s has no batches; send each message in a request of its own", wire.V20260728)
	case msg.Kind == wire.Response:
		return session.Errorf(session.Invalid, "version %s has no responses of clients; answers go into params of the request that is sent again", wire.V20260728)
	case msg.Kind == wire.Notification && !wire.OfExtension(msg.Method):
		x.empty(http.StatusAccepted)
		return nil
	}
	if err := checkHeaders(x.r.Header, msg); err != nil {
		return err
	}
	if version := x.r.Header.Get(wire.HeaderProtocolVersion); version != wire.V20260728 {
		return unsupported(version, bridge.Versions())
	}
	if msg.Kind == wire.Notification {
		of := bridge.Request{Message: msg, Capabilities: wire.Lookup(msg.Params, "_meta", wire.MetaClientCapabilities)}
		to, err := endpoint.Dispatch(x.ctx(), of.Kind(), msg)
		for _, d := range to {
			if err == nil {
				err = x.opts.Host.Notify(x.ctx(), d.Caller, d.Message)
			}
		}
		if err == nil {
			x.empty(http.StatusAccepted)
		}
		return err
	}
	// This check comes before that of _meta, because clients send methods of the legacy
	// era without _meta: go-sdk's ping and logging/setLevel. An extension may know a method
	// that MCP does not have; if none does, the server says so.
	ours := msg.Method == wire.MethodDiscover || msg.Method == wire.MethodListen
	unknown := refusal(http.StatusNotFound, session.Invalid, wire.CodeMethodNotFound, "this method is not served in version "+wire.V20260728)
	if !ours && !bridge.Offered(msg.Method) && !wire.OfExtension(msg.Method) && !(x.servesTasks(x.caller) && bridge.IsTaskMethod(msg.Method)) {
		return unknown
	}
	req, err := bridge.ReadRequest(msg)
	if err != nil {
		return err
	}
	kind := req.Kind()
	x.caller.Kind = kind
	x.session = host.PinnedID(x.caller)
	x.called.client, _ = wire.String(wire.Lookup(req.Client, "name"))
	m := newModern(x, x.ctx(), req, host.Dispatched{Caller: x.caller, Message: msg})
	if msg.Method == wire.MethodDiscover {
		return m.discover(endpoint)
	}
	to, err := endpoint.Dispatch(x.ctx(), kind, msg)
	if err != nil {
		return newReply(m).fail(err)
	}
	if msg.Method == wire.MethodListen {
		return m.listen(endpoint, to)
	}
	m = newModern(x, x.ctx(), req, to[0])
	if m.to.Caller.Server.Name != x.caller.Server.Name {
		x.called.asks([]wire.Message{m.to.Message}) // the tool has another name there
	}
	x.caller, x.session = m.to.Caller, host.PinnedID(m.to.Caller)
	x.msgs = []wire.Message{m.to.Message}
	if err := x.permit(x.msgs); err != nil {
		return err
	}
	switch {
	case m.to.Result != nil:
		out := newReply(m)
		result, err := m.to.Result(x.ctx(), m.client())
		if err != nil {
			return out.fail(err)
		}
		raw := wire.ResultResponse(req.ID, result)
		x.called.ends(raw, x.opts.ShowErrors)
		out.finish(raw, 0)
		return nil
	case bridge.IsTaskMethod(msg.Method):
		if !m.servesTasks() {
			return unknown
		}
		return m.task()
	default:
		return m.call()
	}
}

// checkHeaders compares the headers that repeat parts of the body with the body (MCP
// 2026-07-28, basic/transports, "Standard Headers").
func checkHeaders(h http.Header, msg wire.Message) error {
	once := func(name string) bool { return len(h.Values(name)) <= 1 }
	version, _ := wire.String(wire.Lookup(msg.Params, "_meta", wire.MetaProtocolVersion))
	got := h.Get(wire.HeaderProtocolVersion)
	if got == "" || version != "" && got != version || !once(wire.HeaderProtocolVersion) {
		return mismatch(wire.HeaderProtocolVersion, "_meta."+wire.MetaProtocolVersion)
	}
	if h.Get(wire.HeaderMethod) != msg.Method || !once(wire.HeaderMethod) {
		return mismatch(wire.HeaderMethod, "method")
	}
	name, wanted := bridge.HeaderName(msg)
	if header := h.Get(wire.HeaderName); wanted || header != "" && hasName(msg.Method) {
		decoded, ok := wire.DecodeHeaderValue(header)
		// go-sdk 1.8 does not encode text that needs encoding.
		same := ok && decoded == name || header == name
		if !same || !once(wire.HeaderName) {
			return mismatch(wire.HeaderName, "params")
		}
	}
	for header, values := range h {
		if !strings.HasPrefix(header, http.CanonicalHeaderKey(wire.HeaderParamPrefix)) {
			continue
		}
		// Only the tool's schema says which argument the header repeats; forward compares
		// the two.
		if _, ok := wire.DecodeHeaderValue(values[0]); !ok || len(values) > 1 {
			return mismatch(header, "params.arguments")
		}
	}
	return nil
}

// hasName reports whether Mcp-Name repeats a name in the params of a method.
func hasName(method string) bool {
	switch method {
	case wire.MethodToolsCall, wire.MethodPromptsGet, wire.MethodResourcesRead:
		return true
	default:
		return bridge.IsTaskMethod(method)
	}
}

func mismatch(header, member string) error {
	return refusal(http.StatusBadRequest, session.Invalid, wire.CodeHeaderMismatch,
		"header "+wire.Clip(header)+" must be sent once and say the same as "+member+" in the body")
}

// client returns the facts about the client for a process that has to be started.
func (m modern) client() host.Client {
	return host.Client{Init: m.req.Init(), Verbose: m.req.LogLevel != "", Visits: wire.Lookup(m.req.Capabilities, "elicitation", "url") != nil}
}

// discover answers with the capabilities of the endpoint.
func (m modern) discover(endpoint host.Endpoint) error {
	out := newReply(m)
	greeting, refused, err := m.greeting(endpoint, out)
	switch {
	case err != nil:
		return out.fail(err)
	case refused != nil:
		out.finish(refused.Raw, refused.Code)
	default:
		out.finish(wire.ResultResponse(m.req.ID, bridge.Discover(greeting, m.servesTasks())), 0)
	}
	return nil
}

// greeting finds the answer of an endpoint to initialize. If the handshake record of a server
// has none, the server starts. If the client goes, or is answered before the start ends, the
// start goes on, and the next client finds the record. refused is the server's error if the
// server refused initialize.
func (m modern) greeting(endpoint host.Endpoint, out *reply) (greeting []byte, refused *bridge.Response, err error) {
	result, call, err := endpoint.Greeting(m.ctx, m.to.Caller.Kind, m.client())
	if err != nil || call == nil {
		return result, nil, err
	}
	turn := bridge.NewTurn(m.req, call.Stream(), nil, bridge.State{})
	for {
		events, err := out.until(call, m.x.begun.Add(firstDiscover))
		switch {
		case err != nil:
			return nil, nil, err
		case len(events) == 0 && call.Done():
			return nil, nil, errOver
		case len(events) == 0 && time.Since(m.x.begun) >= firstDiscover:
			return bridge.Unknown(), nil, nil
		}
		for _, e := range events {
			switch step := turn.Take(e); {
			case step.Reply == nil:
			case step.Reply.Code != 0:
				return nil, step.Reply, nil
			default:
				return wire.Lookup(e.Raw, "result"), nil, nil
			}
		}
	}
}

// firstDiscover is how long the first server/discover of a server waits for the server to
// start. Clients that probe take a server for one of the legacy era if it is silent for
// longer: Python's and Rust's after 10 s.
const firstDiscover = 5 * time.Second

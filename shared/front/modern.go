package front

import (
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

// modern serves a request of the modern era (MCP 2026-07-28). The request has all that
// is needed to serve it, and its own response answers it. Package bridge and Host.Send
// translate it; modern adds the HTTP part. It ignores a session id and a Last-Event-ID,
// and sends none.
type modern struct {
	x   *exchange
	req bridge.Request
}

// serveModern does the checks of the modern era and serves what was posted. Its checks
// come after the JSON-RPC checks in the list of checks (the ladder) in validate.go:
//
//	batch, response               400 -32600  serveModern
//	notification                  202         (only those of extensions mean anything)
//	header missing or different   400 -32020  checkHeaders; those of arguments last, bridge.CheckParams
//	version                       400 -32022
//	method                        404 -32601
//	_meta                         400 -32602  bridge.ReadRequest
//	client capability             400 -32021  bridge.Turn
//	any error of the server       by statusOf
func serveModern(x *exchange, msgs []wire.Message, batch bool) error {
	x.caller.Transport = session.Modern
	x.session = host.PinnedID(x.caller)
	msg := msgs[0]
	switch {
	case batch:
		return session.Errorf(session.Invalid, "version %s has no batches; send each message in a request of its own", wire.V20260728)
	case msg.Kind == wire.Response:
		return session.Errorf(session.Invalid, "version %s has no responses of clients; answers go into params of the request that is sent again", wire.V20260728)
	case msg.Kind == wire.Notification:
		return extended{x}.notified(msg)
	}
	if err := checkHeaders(x.r.Header, msg); err != nil {
		return err
	}
	if version := x.r.Header.Get(wire.HeaderProtocolVersion); version != wire.V20260728 {
		return unsupported(version, bridge.Versions())
	}
	// This check comes before that of _meta, because clients send methods of the legacy
	// era without _meta: go-sdk's ping and logging/setLevel.
	served := x.one != nil && x.one.extends || msg.Method == wire.MethodDiscover || msg.Method == wire.MethodListen || x.servesTasks() && bridge.IsTaskMethod(msg.Method)
	if !served && !bridge.Offered(msg.Method) && !(extended{x}).asks(msg) {
		return refusal(http.StatusNotFound, session.Invalid, wire.CodeMethodNotFound, "this method is not served in version "+wire.V20260728)
	}
	req, err := bridge.ReadRequest(msg)
	if err != nil {
		return err
	}
	if !x.servesTasks() {
		req = req.WithoutTasks()
	}
	if x.opts.Sealer == nil {
		req = req.WithoutQuestions()
	}
	extended{x}.ofKind(req.Kind())
	x.called.client, _ = wire.String(wire.Lookup(req.Client, "name"))
	return modern{x, req}.serve()
}

func (m modern) serve() error {
	if m.x.one != nil {
		if served, err := (oneModern{m.x.one}).serve(m); served || err != nil {
			return err
		}
	}
	switch m.req.Method {
	case wire.MethodDiscover:
		return m.discover()
	case wire.MethodListen:
		return m.listen()
	case wire.MethodTasksGet, wire.MethodTasksUpdate, wire.MethodTasksCancel:
		return m.tasks().serve()
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
		"header "+clip(header)+" must be sent once and say the same as "+member+" in the body")
}

// tasks returns the server of the tasks extension for the same request.
func (m modern) tasks() tasks { return tasks(m) }

// client returns the facts about the client for a process that has to be started.
func (m modern) client() host.Client {
	return host.Client{Init: m.req.Init(), Verbose: m.req.LogLevel != "", Visits: wire.Lookup(m.req.Capabilities, "elicitation", "url") != nil}
}

// discover answers with the capabilities of the server.
func (m modern) discover() error {
	out := newReply(m.x, m.req)
	handshake, refused, err := m.greeting(out)
	switch {
	case err != nil:
		return out.fail(err)
	case refused != nil:
		out.finish(refused.Raw, refused.Code)
	default:
		out.finish(wire.ResultResponse(m.req.ID, bridge.Discover(handshake, m.x.servesTasks())), 0)
	}
	return nil
}

// greeting finds the server's answer to initialize. It is in the handshake record; without
// a record, greeting starts the server. If the client goes, or is answered before the
// start ends, the start goes on, and the next client finds the record. refused is the
// server's error if the server refused initialize.
func (m modern) greeting(out *reply) (handshake []byte, refused *bridge.Response, err error) {
	result, call, err := m.x.opts.Host.Greeting(m.x.ctx(), m.x.caller, m.client())
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

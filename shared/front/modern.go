package front

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// The modern era (MCP 2026-07-28): every request says all that has to be known to
// serve it, and is answered in its own response. What is behind is package bridge's
// and Host.Send's; here is what HTTP adds. The ladder goes on behind JSON-RPC (see
// validate.go):
//
//	batch, response               400 -32600  modern
//	notification                  202         (there is none that means anything)
//	header missing or different   400 -32020  headers; those of arguments last, bridge.CheckParams
//	version                       400 -32022
//	method                        404 -32601
//	_meta                         400 -32602  bridge.ReadRequest
//	client capability             400 -32021  bridge.Turn
//	anything the server says      as statusOf
//
// A session id and a Last-Event-ID are ignored, and none is sent.

// Sealer seals what a client carries from one round of a call to the next.
// session.Sealer is one.
type Sealer interface {
	Seal(plain []byte) string
	Open(sealed string) (plain []byte, ok bool)
}

// isModernPost says that what was posted is of the modern era: a message says so,
// or the header does. initialize is what begins the other one, unless its own
// message says otherwise.
func (x *exchange) isModernPost(msgs []wire.Message) bool {
	return slices.ContainsFunc(msgs, func(m wire.Message) bool {
		header := x.r.Header.Get(wire.HeaderProtocolVersion)
		if m.Kind == wire.Request && m.Method == wire.MethodInitialize {
			header = ""
		}
		_, modern := modernVersion(m, header)
		return modern
	})
}

// modern serves what was posted.
func (x *exchange) modern(msgs []wire.Message, batch bool) error {
	x.caller.Transport = session.Modern
	x.session = host.PinnedID(x.caller)
	m := msgs[0]
	switch {
	case batch:
		return session.Errorf(session.Invalid, "version %s has no batches; send each message in a request of its own", wire.V20260728)
	case m.Kind == wire.Response:
		return session.Errorf(session.Invalid, "version %s has no responses of clients; answers go into params of the request that is sent again", wire.V20260728)
	case m.Kind == wire.Notification:
		x.empty(http.StatusAccepted)
		return nil
	}
	if err := x.headers(m); err != nil {
		return err
	}
	if version := x.r.Header.Get(wire.HeaderProtocolVersion); version != wire.V20260728 {
		return unsupported(version, bridge.Versions())
	}
	// Before _meta, for clients send what they have kept of the other era without: go-sdk's
	// ping and logging/setLevel.
	served := m.Method == wire.MethodDiscover || m.Method == wire.MethodListen || x.tasks() && bridge.IsTaskMethod(m.Method)
	if !served && !bridge.Offered(m.Method) {
		return refusal(http.StatusNotFound, session.Invalid, wire.CodeMethodNotFound, "this method is not served in version "+wire.V20260728)
	}
	req, err := bridge.ReadRequest(m)
	if err != nil {
		return err
	}
	if !x.tasks() {
		req = req.WithoutTasks()
	}
	if x.opts.Sealer == nil {
		req.Capabilities = []byte("{}")
	}
	return x.serveModern(req)
}

func (x *exchange) serveModern(req bridge.Request) error {
	switch req.Method {
	case wire.MethodDiscover:
		return x.discover(req)
	case wire.MethodListen:
		return x.subscribe(req)
	case wire.MethodTasksGet, wire.MethodTasksUpdate, wire.MethodTasksCancel:
		return x.serveTask(req)
	default:
		return x.tool(req)
	}
}

// headers compares the headers that repeat the body (MCP 2026-07-28,
// basic/transports, "Standard Headers").
func (x *exchange) headers(m wire.Message) error {
	version, _ := wire.String(wire.Lookup(m.Params, "_meta", wire.MetaProtocolVersion))
	got := x.r.Header.Get(wire.HeaderProtocolVersion)
	if got == "" || version != "" && got != version || !x.once(wire.HeaderProtocolVersion) {
		return mismatch(wire.HeaderProtocolVersion, "_meta."+wire.MetaProtocolVersion)
	}
	if x.r.Header.Get(wire.HeaderMethod) != m.Method || !x.once(wire.HeaderMethod) {
		return mismatch(wire.HeaderMethod, "method")
	}
	name, wanted := bridge.HeaderName(m)
	if header := x.r.Header.Get(wire.HeaderName); wanted || header != "" && hasName(m.Method) {
		decoded, ok := wire.DecodeHeaderValue(header)
		// go-sdk 1.8 sends text as it is where it should be encoded.
		same := ok && decoded == name || header == name
		if !same || !x.once(wire.HeaderName) {
			return mismatch(wire.HeaderName, "params")
		}
	}
	for header, values := range x.r.Header {
		if !strings.HasPrefix(header, http.CanonicalHeaderKey(wire.HeaderParamPrefix)) {
			continue
		}
		// Which argument it repeats only the tool's schema says; see forward.
		if _, ok := wire.DecodeHeaderValue(values[0]); !ok || len(values) > 1 {
			return mismatch(header, "params.arguments")
		}
	}
	return nil
}

// once says that a header was not sent twice.
func (x *exchange) once(header string) bool { return len(x.r.Header.Values(header)) <= 1 }

// hasName says that a method has a name that Mcp-Name repeats.
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

// client is what the process is told of who is before it, if it has to be started.
func client(req bridge.Request) host.Client {
	return host.Client{Init: bridge.Superset(req.Client), Verbose: req.LogLevel != ""}
}

// discover tells what the server can do.
func (x *exchange) discover(req bridge.Request) error {
	out := x.reply(req)
	handshake, refused, err := x.greeting(out, req)
	switch {
	case err != nil:
		return out.fail(err)
	case refused != nil:
		out.finish(refused.Raw, refused.Code)
	default:
		out.finish(wire.ResultResponse(req.ID, bridge.Discover(handshake, x.tasks())), 0)
	}
	return nil
}

// greeting finds what the server answered to initialize: in the record of its
// handshake, or when there is none by starting it. A start goes on when the client
// has gone, or has its answer without it: the next one finds the record. refused is
// the error of one that failed.
func (x *exchange) greeting(out *reply, req bridge.Request) (handshake []byte, refused *bridge.Response, err error) {
	result, call, err := x.opts.Host.Greeting(x.ctx(), x.caller, client(req))
	if err != nil || call == nil {
		return result, nil, err
	}
	turn := bridge.NewTurn(req, call.Stream(), nil, bridge.State{})
	for {
		events, err := out.until(call, x.begun.Add(firstDiscover))
		switch {
		case err != nil:
			return nil, nil, err
		case len(events) == 0 && call.Done():
			return nil, nil, errOver
		case len(events) == 0 && time.Since(x.begun) >= firstDiscover:
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

// firstDiscover is how long the first server/discover of all waits for its server to
// start. Clients that probe take a longer silence for a server of the other era:
// Python's and Rust's after 10 s.
const firstDiscover = 5 * time.Second

// tool serves all requests that are for the server, in the first round or in a
// later one.
func (x *exchange) tool(req bridge.Request) error {
	if req.State == "" {
		return x.forward(req)
	}
	state, err := x.resume(req)
	if err != nil {
		return err
	}
	turn := bridge.NewTurn(req, state.Stream, nil, state)
	answers, err := turn.Answers()
	if err != nil {
		return err
	}
	if state.Stream == "" {
		return x.again(req, turn)
	}
	call, server, err := x.opts.Host.Reattach(x.ctx(), x.caller, state.Stream, state.From, raws(answers)...)
	if errors.Is(err, session.NotFound) {
		return bridge.BadState()
	}
	if err != nil {
		return err
	}
	turn.Served(server)
	return x.follows(req, call, server, turn)
}

func raws(answers []bridge.Answer) [][]byte {
	out := make([][]byte, len(answers))
	for i, a := range answers {
		out[i] = a.Raw
	}
	return out
}

func (x *exchange) forward(req bridge.Request) error {
	c := client(req)
	if req.Method == wire.MethodToolsCall {
		c.Check = func(notes json.RawMessage) (brief bool, err error) {
			if err := bridge.CheckParams(bridge.NotedParams(notes), req, x.r.Header.Values); err != nil {
				return false, err
			}
			if x.lacksTasks(req, notes) {
				return false, bridge.NeedsTasks()
			}
			after, ok := x.taskAfter(req, notes)
			return ok && after <= soon, nil
		}
	}
	call, server, err := x.opts.Host.Send(x.ctx(), x.caller, c, req.Method, req.Forward())
	if err != nil {
		return err
	}
	return x.follows(req, call, server, bridge.NewTurn(req, call.Stream(), server, bridge.State{}))
}

// again makes a call again that was over, once its client has done what the server
// wanted first. One that has not is not asked twice.
func (x *exchange) again(req bridge.Request, turn *bridge.Turn) error {
	if complete, agreed := turn.Complete(); !complete || !agreed {
		return &wire.Error{Code: wire.CodeInvalidParams, Message: "the server wants its user to visit a page first, and not every request for that was accepted; send the request anew"}
	}
	return x.forward(turn.Request())
}

// resume opens the state a client brings.
func (x *exchange) resume(req bridge.Request) (bridge.State, error) {
	if x.opts.Sealer == nil {
		return bridge.State{}, bridge.BadState()
	}
	plain, ok := x.opts.Sealer.Open(req.State)
	if !ok {
		return bridge.State{}, bridge.BadState()
	}
	return req.Resume(plain, host.PinnedID(x.caller), time.Now())
}

// seal makes the state a client carries to the next round. It is worth something
// for as long as the log is kept.
func (x *exchange) seal(state bridge.State) string {
	state.Session = host.PinnedID(x.caller)
	state.Expires = time.Now().Add(x.opts.Host.Limits().EventAge).Unix()
	return x.opts.Sealer.Seal(state.Encode())
}

// gather is how long one question of a server waits for others: a client is asked
// all at once.
const gather = 30 * time.Millisecond

// follows answers with what comes of a call. A client that closes the response has
// cancelled it. One that can come back with the same state has not. server is what
// the server calls itself, nil if that is not known.
func (x *exchange) follows(req bridge.Request, call *host.Call, server json.RawMessage, turn *bridge.Turn) error {
	out := x.reply(req)
	if after, ok := x.taskAfter(req, call.Learned()); ok {
		out.task = x.begun.Add(after)
	}
	err := x.turn(out, req, call, turn)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errTask):
		x.become(out, req, call, server)
		return nil
	}
	if req.State == "" || errors.Is(err, errGone) || errors.Is(err, errLate) || errors.Is(err, errForgotten) {
		ctx, cancel := x.detached()
		defer cancel()
		if abandoned := x.opts.Host.Abandon(ctx, x.caller, call.Stream(), "the client closed the response"); abandoned != nil && x.err == nil {
			x.err = abandoned
		}
	}
	return out.fail(err)
}

// turn reads events until there is an answer: the server's, or questions for the
// client; or until the call is to become a task (errTask).
func (x *exchange) turn(out *reply, req bridge.Request, call *host.Call, turn *bridge.Turn) error {
	var asked time.Time // when the first question came
	for {
		if !turn.Asks() {
			asked = time.Time{}
		} else if asked.IsZero() {
			asked = time.Now()
		}
		if !asked.IsZero() && (turn.Again() || time.Since(asked) >= gather) {
			out.finish(turn.Required(x.seal(turn.State())), 0)
			return nil
		}
		var events []session.Event
		var err error
		if asked.IsZero() {
			events, err = out.next(call)
		} else {
			events, err = out.until(call, asked.Add(gather))
		}
		if err == nil && len(events) == 0 && call.Done() {
			err = errOver
		}
		if err != nil {
			return err
		}
		if complete, _ := turn.Complete(); len(events) > 0 && call.Gap() && !complete {
			return errForgotten
		}
		for _, e := range events {
			step := turn.Take(e)
			if err := x.learn(req, call, e, step); err != nil {
				return err
			}
			done, err := x.take(out, step)
			if done || err != nil {
				return err
			}
		}
	}
}

// learn keeps what a list of tools says of later calls, before the client can make
// one.
func (x *exchange) learn(req bridge.Request, call *host.Call, e session.Event, step bridge.Step) error {
	first := req.Method == wire.MethodToolsList && wire.Lookup(req.Params, "cursor") == nil
	if !first || step.Reply == nil || step.Reply.Code != 0 {
		return nil
	}
	return x.opts.Host.Learn(x.ctx(), x.caller, call, bridge.ToolNotes(wire.Lookup(e.Raw, "result")))
}

// take does what an event means.
func (x *exchange) take(out *reply, step bridge.Step) (done bool, err error) {
	switch {
	case step.Answer != nil:
		return false, x.opts.Host.Reply(x.ctx(), x.caller, step.Answer.Raw)
	case step.Notify != nil:
		return false, out.notify(step.Notify)
	case step.Reply != nil:
		out.finish(step.Reply.Raw, step.Reply.Code)
		return true, nil
	}
	return false, nil
}

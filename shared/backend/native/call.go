package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// call is one request of a client, executed by a [run]. In each round the server gets the request once,
// and answers it, asks the client something, or pauses.
type call struct {
	r        *run
	id       json.RawMessage
	ended    bool         // the run has the response of the call; only the run uses this field
	m        wire.Message // as the client wrote it, unless later is true
	later    bool         // m was sent before, and now has the answers or the state that the server wanted
	retries  int
	answered atomic.Bool // the current round has ended

	mu      sync.Mutex
	conn    *connection        // connection of the current round
	session *mcp.ServerSession // session of that round
	closed  bool
	abort   context.CancelCauseFunc // ends the request at a server that runs elsewhere, nil for none
}

// outcome is what a call has come to. raw is its response; asks is set if the call goes on later.
type outcome struct {
	call *call
	raw  []byte
	asks *asking
}

// asking is a call that goes on later: when its client has answered, or at a given time.
type asking struct {
	id       json.RawMessage
	whole    [][]byte       // questions of a legacy server, in place of inputs
	raw      []byte         // the request that the server gets when the call goes on, without the answers
	inputs   []bridge.Input // what the server needs from the client
	at       time.Time      // when the call goes on, if it needs no inputs
	asked    []bridge.Asked // the questions, as the store keeps them
	requests [][]byte       // the questions, as the client gets them
}

// modern reports whether the client speaks 2026-07-28.
func (c *call) modern() bool { return c.r.in.record.Transport == storage.Modern }

// direct reports whether the server gets the params as the client wrote them. A call that may
// become a task is not direct: its questions go into the log.
func (c *call) direct() bool { return c.modern() && bridge.SaysModern(c.m.Params) }

// client returns what the client has said about itself, as the server sees it.
func (c *call) client() bridge.Legacy { return bridge.ReadLegacy(c.r.in.record.Init) }

// execute executes the call until it has a response, needs answers of its client, or pauses.
func (c *call) execute() outcome {
	defer c.answered.Store(true)
	if c.m.Method == wire.MethodInitialize || c.m.Method == wire.MethodSubscribe || c.m.Method == wire.MethodUnsubscribe {
		return c.discovered()
	}
	switch c.m.Method {
	case wire.MethodPing, wire.MethodSetLevel: // each request carries the level of its session
		if c.m.Method == wire.MethodPing || c.r.in.server.Remote == nil {
			return c.result(json.RawMessage("{}"))
		}
	case wire.MethodDiscover, wire.MethodListen: // the client's version lacks the method, or the endpoint answers it itself
		return c.fault(&wire.Error{Code: wire.CodeMethodNotFound, Message: "this method is not served in the version that the client speaks"})
	}
	for {
		a := c.send(c.m.Method, c.params())
		switch {
		case a.Fault != nil:
			return c.fault(a.Fault)
		case a.Whole != nil:
			return c.whole(a.Whole)
		case len(a.Asks) > 0:
			state, _ := json.Marshal(a.State) // cannot fail: it is a string
			return outcome{call: c, asks: &asking{id: c.id, whole: a.Asks, raw: bridge.Retry(c.m.Raw, state)}}
		case !bridge.Wants(a.Result):
			return c.result(c.fit(a.Result))
		}
		if o, again := c.wants(a.Result); !again {
			return o
		}
		if !c.pauses() {
			return outcome{call: c}
		}
	}
}

// discovered answers initialize, resources/subscribe and resources/unsubscribe. It needs only
// the server's capabilities, which it gets with server/discover.
func (c *call) discovered() outcome {
	a := c.send(wire.MethodDiscover, bridge.ReadLegacy(c.r.in.record.Init).Params(wire.MethodDiscover, nil, "", false))
	discover := a.Result
	switch {
	case a.Fault != nil:
		return c.fault(a.Fault)
	case a.Whole != nil:
		return c.whole(a.Whole)
	case c.m.Method == wire.MethodInitialize && c.modern():
		return c.result(bridge.Handshake(discover))
	case c.m.Method == wire.MethodInitialize:
		return c.result(c.client().Initialize(discover))
	case string(wire.Lookup(discover, "capabilities", "resources", "subscribe")) != "true":
		return c.fault(&wire.Error{Code: wire.CodeMethodNotFound, Message: "the server does not tell of changes of its resources"})
	}
	if c.r.in.server.Remote != nil {
		if a = c.subscribes(); a.Fault != nil {
			return c.fault(a.Fault)
		}
		if wire.Lookup(a.Whole, "error") != nil {
			return c.whole(a.Whole)
		}
	}
	if uri, ok := wire.String(wire.Lookup(c.m.Params, "uri")); ok && c.m.Method == wire.MethodSubscribe {
		if err := newSubscribers(c.r.k.Store, c.r.in.record, uri).add(c.r.ctx, c.r.in.record.ID); err != nil {
			return c.fault(&wire.Error{Code: wire.CodeInternal, Message: "the subscription could not be kept; subscribe again"})
		}
	}
	if a.Whole != nil {
		return c.whole(a.Whole)
	}
	return c.result(json.RawMessage("{}"))
}

// params returns the params of the request as the server gets them.
func (c *call) params() json.RawMessage {
	if c.direct() {
		return c.m.Params
	}
	return c.client().Params(c.m.Method, c.m.Params, c.r.in.record.Level, c.later)
}

func (c *call) result(result json.RawMessage) outcome {
	return outcome{call: c, raw: wire.ResultResponse(c.id, result)}
}

// whole gives the client the response of a legacy server.
func (c *call) whole(response []byte) outcome {
	response, _ = wire.Replace(response, c.id, "id")
	return outcome{call: c, raw: response}
}

func (c *call) fault(e *wire.Error) outcome {
	if e.Code == 0 {
		e.Code = wire.CodeInternal // go-sdk gives no code to errors that are not its own
	}
	raw := wire.ErrorResponse(c.id, e)
	if !c.modern() {
		raw, _ = wire.Replace(raw, bridge.PlainFault(c.m.Method, wire.Lookup(raw, "error")), "error")
	}
	return outcome{call: c, raw: raw}
}

// fit returns a result as the client gets it. The cacheScope "public" with a ttlMs of 0 is go-sdk's
// default, and becomes "private".
func (c *call) fit(result json.RawMessage) json.RawMessage {
	if c.m.Method == wire.MethodToolsList {
		result = bridge.Executions(result)
	}
	if !c.modern() {
		return bridge.Plain(c.m.Method, result)
	}
	if string(wire.Lookup(result, "ttlMs")) == "0" && string(wire.Lookup(result, "cacheScope")) == `"public"` {
		result, _ = wire.Replace(result, json.RawMessage(`"private"`), "cacheScope")
	}
	return result
}

// These limit the retries of a request that a server wants again at once.
const (
	maxRetries = 10
	firstRetry = 50 * time.Millisecond
	lastRetry  = 2 * time.Second
)

// wants handles a result that asks for inputs, a pause or a retry. again is true if the
// request only has to be sent again.
func (c *call) wants(result json.RawMessage) (o outcome, again bool) {
	inputs, state, fault := bridge.ReadInputs(result)
	if fault != nil {
		return c.fault(fault), false
	}
	a := &asking{id: c.id, inputs: inputs}
	if at, own, ok := readLater(state); ok && len(inputs) == 0 {
		a.at, a.raw = at, bridge.Retry(c.m.Raw, own)
		return outcome{call: c, asks: a}, false
	}
	if len(inputs) > 0 && c.direct() {
		return c.result(bridge.Asking(result)), false // the client calls again by itself
	}
	a.raw = bridge.Retry(c.m.Raw, state)
	if len(inputs) > 0 {
		return outcome{call: c, asks: a}, false
	}
	m, err := wire.Parse(a.raw)
	if c.retries++; c.retries > maxRetries || err != nil {
		return c.fault(failure(c.r.in.record.Server, phaseToolCall, fmt.Sprintf("it wants %s to be sent again and again; it was given up after %d times", c.m.Method, maxRetries))), false
	}
	c.m, c.later = m, true
	return outcome{}, true
}

// pauses waits before the request is sent again. It returns false if the call was stopped
// meanwhile.
func (c *call) pauses() bool {
	select {
	case <-time.After(min(firstRetry<<(c.retries-1), lastRetry)):
		return true
	case <-c.r.stopped.Done():
		return false
	}
}

// send makes the server and has it answer one request.
func (c *call) send(method string, params json.RawMessage) Answer {
	in := *c.r.in
	in.init, in.method = in.record.Init, method
	if method == wire.MethodToolsCall {
		in.tool, _ = wire.String(wire.Lookup(params, "name"))
	}
	if c.direct() {
		in.init = bridge.Declared(c.m.Params)
	}
	if c.m.Method == wire.MethodSubscribe || c.m.Method == wire.MethodUnsubscribe {
		in.subscription = c.m.Method
		in.uri, _ = wire.String(wire.Lookup(c.m.Params, "uri"))
	}
	if in.server.Remote != nil {
		return c.remote(method, params, &in)
	}
	server, err := makeServer(c.r.ctx, Session{&in})
	if err != nil {
		c.r.k.Log.WarnContext(c.r.ctx, "server cannot be made", "server", in.record.Server, "session_id", in.record.ID, "error", err)
		return Answer{Fault: failure(in.record.Server, phaseInit, err.Error())}
	}
	conn := newConnection(c, method, params, &in)
	ss, err := server.Connect(c.r.ctx, conn, nil)
	if err != nil {
		return Answer{Fault: failure(in.record.Server, phaseInit, err.Error())}
	}
	if !c.opened(conn, ss) {
		return Answer{Fault: failure(in.record.Server, phaseRuntime, "the request was stopped")}
	}
	response := conn.answer()
	switch {
	case response == nil:
		return Answer{Fault: failure(in.record.Server, phaseRuntime, "the request was stopped")}
	case response.Error != nil:
		return Answer{Fault: faultOf(response.Error)}
	default:
		return Answer{Result: response.Result}
	}
}

// opened keeps the connection to the server in c, so that cancel and close can close it. It closes the
// connection that c had before. ok is false if the call was already stopped.
func (c *call) opened(conn *connection, ss *mcp.ServerSession) (ok bool) {
	c.close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = conn.Close() // always nil
		_ = ss.Close()   // the error says how the connection ended, and this end is intended
		return false
	}
	c.conn, c.session = conn, ss
	return true
}

// cancel stops the call: its context ends, and its answer is ignored.
func (c *call) cancel() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.conn != nil && !c.answered.Load() {
		_ = c.conn.Close() // always nil
	}
	if c.abort != nil {
		c.abort(context.Cause(c.r.stopped))
	}
}

// close ends the call's connection to the server, and waits for the handlers.
func (c *call) close() {
	c.mu.Lock()
	ss := c.session
	c.session = nil
	c.mu.Unlock()
	if ss != nil {
		_ = ss.Close() // the error says how the connection ended, and this end is intended
	}
}

// makeServer calls an author's code, which may panic.
func makeServer(ctx context.Context, s Session) (server *mcp.Server, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			server, err = nil, s.in.panicked(ctx, fault)
		}
	}()
	if server, err = s.in.server.Make(ctx, s); err != nil {
		return nil, err
	}
	if server == nil {
		return nil, errors.New("Server returned neither a server nor an error; return one of them")
	}
	server.AddReceivingMiddleware(s.in.guard)
	return server, nil
}

// guard is middleware: it answers a request whose handler panics, and calls subscribe if the client
// subscribes or unsubscribes.
func (in *environment) guard(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (result mcp.Result, err error) {
		defer func() {
			if fault := recover(); fault != nil {
				result, err = nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: failure(in.record.Server, phaseRuntime, in.panicked(ctx, fault).Error()).Message}
			}
		}()
		if result, err = next(ctx, method, req); err == nil && in.subscription != "" {
			err = in.subscribe(ctx, next, req)
		}
		return result, err
	}
}

// subscribe calls the author's handler of subscriptions, if there is one: go-sdk would refuse
// resources/subscribe in the modern era. An error of the handler refuses the subscription.
func (in *environment) subscribe(ctx context.Context, next mcp.MethodHandler, discover mcp.Request) error {
	ss, _ := discover.GetSession().(*mcp.ServerSession)
	var req mcp.Request = &mcp.SubscribeRequest{Session: ss, Params: &mcp.SubscribeParams{URI: in.uri}, Extra: in.extra}
	if in.subscription == wire.MethodUnsubscribe {
		req = &mcp.UnsubscribeRequest{Session: ss, Params: &mcp.UnsubscribeParams{URI: in.uri}, Extra: in.extra}
	}
	_, err := next(ctx, in.subscription, req)
	if none, ok := errors.AsType[*jsonrpc.Error](err); ok && none.Code == jsonrpc.CodeMethodNotFound {
		return nil // the author has set no handler of subscriptions
	}
	return err
}

func (in *environment) panicked(ctx context.Context, fault any) error {
	in.k.Log.ErrorContext(ctx, "native server panics", "server", in.record.Server, "session_id", in.record.ID,
		"error", fmt.Sprint(fault), "stack", string(debug.Stack()))
	if in.k.ShowErrors {
		return fmt.Errorf("it panicked: %v; the log has the stack", fault)
	}
	return errors.New("it panicked; its operator finds the cause in the log")
}

// faultOf returns the error that a client gets for an error of the server.
func faultOf(err error) *wire.Error {
	e, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok {
		return &wire.Error{Code: wire.CodeInternal, Message: err.Error()}
	}
	out := &wire.Error{Code: wire.Code(e.Code), Message: e.Message}
	if len(e.Data) > 0 {
		out.Data = e.Data
	}
	return out
}

// connection is go-sdk's transport of one request. After the request, Read blocks until
// Close.
type connection struct {
	c       *call
	id      string
	token   json.RawMessage // the client's own progress token, nil for none
	request chan *jsonrpc.Request
	done    chan *jsonrpc.Response
	closed  chan struct{}
	once    func()
}

// Each request has a connection of its own, so requestID and progressToken can be the
// same for all.
const (
	requestID     = 1
	progressToken = "1"
)

func newConnection(c *call, method string, params json.RawMessage, in *environment) *connection {
	conn := &connection{
		c: c, id: string(in.record.ID), token: wire.Lookup(params, "_meta", wire.MetaProgressToken),
		request: make(chan *jsonrpc.Request, 1), done: make(chan *jsonrpc.Response, 1), closed: make(chan struct{}),
	}
	conn.once = sync.OnceFunc(func() { close(conn.closed) })
	if conn.token != nil {
		params, _ = wire.Replace(params, json.RawMessage(progressToken), "_meta", wire.MetaProgressToken)
	}
	id, _ := jsonrpc.MakeID(float64(requestID)) // cannot fail: a number is a valid id
	conn.request <- &jsonrpc.Request{ID: id, Method: method, Params: params, Extra: in.extra}
	return conn
}

// Connect implements mcp.Transport.
func (n *connection) Connect(context.Context) (mcp.Connection, error) { return n, nil }

// SessionID implements mcp.Connection.
func (n *connection) SessionID() string { return n.id }

// Read implements mcp.Connection.
func (n *connection) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-n.request:
		return m, nil
	case <-n.closed:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Write implements mcp.Connection.
func (n *connection) Write(_ context.Context, m jsonrpc.Message) error {
	switch m := m.(type) {
	case *jsonrpc.Response:
		select {
		case n.done <- m:
		default: // only the first answer counts
		}
	case *jsonrpc.Request:
		if m.IsCall() {
			return errors.New("a native server cannot ask the client while it runs; return InputRequests to ask")
		}
		n.notice(m)
	}
	return nil
}

// notice passes on a notification of the server, if it belongs to the request.
func (n *connection) notice(m *jsonrpc.Request) {
	params := json.RawMessage(m.Params)
	switch m.Method {
	case wire.NotifyProgress:
		if n.token == nil {
			return
		}
		params, _ = wire.Replace(params, n.token, wire.MetaProgressToken)
	case wire.NotifyToolsChanged, wire.NotifyPromptsChanged, wire.NotifyResourcesChanged, wire.NotifyResourceUpdated, wire.NotifyCancelled:
		return // Session.Notify sends these
	}
	n.c.r.say(wire.NewNotification(m.Method, params))
}

// Close implements mcp.Connection.
func (n *connection) Close() error {
	n.once()
	return nil
}

// answer waits for the response; it returns nil if the connection is closed first.
func (n *connection) answer() *jsonrpc.Response {
	select {
	case m := <-n.done:
		return m
	case <-n.closed:
		return nil
	}
}

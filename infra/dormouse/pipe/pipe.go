// Package pipe makes a Streamable HTTP endpoint available as a stdio server, for clients that
// support only stdio. It passes all messages on unchanged, whatever their method and protocol
// version.
//
// The client transport of the MCP Go SDK does not suffice: it sends the protocol version and opens
// the standalone stream only for the SDK's own client, and drops JSON members that it does not
// know.
//
// # What the pipe does by itself
//
//   - It takes the session id and the protocol version from the handshake, and sends them in
//     headers. For a request of 2026-07-28, it sends version, method, name and arguments in headers.
//   - It opens the standalone stream of a session. It resumes broken streams with Last-Event-ID.
//     If a stream cannot be resumed, the client gets an error instead of the response.
//   - If the endpoint no longer knows the session, the pipe opens another one with the client's own
//     initialize. Then it sends the message again. That is safe, because the endpoint has refused it.
//   - If the endpoint requires a sign-in and there is no key, it signs the user in (type signIn).
package pipe

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// Config has the endpoint and the streams of a call of [Run].
type Config struct {
	URL      string       // URL of the endpoint; http or https
	Key      string       // sent as a bearer token; if "", the user signs in when the endpoint requires it
	ClientID string       // id of a registered client, or URL of a client id metadata document; if "", the pipe registers a client
	Tokens   string       // folder that keeps access tokens; created for the first one
	Browse   func(string) // opens a page in the user's browser, if there is one
	In       io.Reader    // messages from the client, one a line
	Out      io.Writer    // messages for the client, one a line
	Log      io.Writer    // sentences for the user, one a line
}

const (
	lingers    = 30 * time.Second       // how long Run waits for responses after the client has closed its end
	leavesIn   = 2 * time.Second        // timeout of the request that ends the session
	standsIn   = time.Second            // longest time that the next message waits for the standalone stream to open
	lostWithin = 5 * time.Minute        // how long the pipe tries to resume a broken stream
	firstRest  = 500 * time.Millisecond // pause before a stream is resumed, if the endpoint names none; it doubles up to longRest
	longRest   = 30 * time.Second
	maxMessage = 64 << 20 // bytes of one message
)

// pipe connects a client on stdio to an endpoint.
type pipe struct {
	Config
	where string // Config.URL without query and user
	http  *http.Client
	login *signIn
	ctx   context.Context // done when the pipe ends

	out sync.Mutex // held while a line is written to Out

	renewing sync.Mutex // held while a new session is opened

	mu       sync.Mutex
	session  string
	version  string          // protocol version of the handshake, or of the last request that names one
	greeting []byte          // the client's initialize request
	params   json.RawMessage // which arguments of which tools must be repeated in headers; see bridge.HeaderParams
	calls    []*call         // requests that wait for a response
}

// call is a line from the client that is being handled, or the standalone stream.
type call struct {
	body     []byte
	msg      wire.Message      // zero for a batch, and for a line that is no valid message
	waits    []json.RawMessage // ids of the requests that have no response yet
	version  string            // protocol version in the request itself; "" for none
	standing bool              // the call is the standalone stream
	hidden   bool              // the pipe itself sends this request, so the client gets no response
	ctx      context.Context
	cancel   context.CancelFunc
}

// Run passes messages on until the client closes its end or ctx ends. If the client has closed its
// end, responses that are due have half a minute to come. The client gets an error response for
// each request that fails. Run itself returns an error only if Config.URL is invalid.
func Run(ctx context.Context, c Config) error {
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("the URL of the endpoint begins with https:// or http://, as in https://mcp.example.com/github/mcp")
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 16
	defer transport.CloseIdleConnections()
	p := &pipe{Config: c, where: u.Scheme + "://" + u.Host + u.Path, ctx: ctx}
	p.http = &http.Client{Transport: transport, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if len(via) > 5 || r.Method != via[0].Method {
			return http.ErrUseLastResponse // a redirect to GET would drop the message
		}
		return nil
	}}
	if c.Key == "" {
		p.login = newSignIn(c, &http.Client{Transport: transport, Timeout: time.Minute})
		defer p.login.close()
	}
	var flights sync.WaitGroup
	lines := make(chan []byte)
	go p.read(lines, stop) // read may block on In forever, so Run does not wait for it
	for open := true; open; {
		var line []byte
		select {
		case line, open = <-lines:
		case <-ctx.Done():
			open = false
		}
		if open {
			p.take(line, &flights)
		}
	}
	flights.Wait()
	p.leave()
	return nil
}

// read passes the client's lines on until the client closes its end. Then it cancels the calls of
// subscriptions/listen, which would never end. Half a minute later it calls stop, which ends the
// other calls.
func (p *pipe) read(lines chan<- []byte, stop func()) {
	defer close(lines)
	in := bufio.NewReader(p.In)
	for {
		line, err := in.ReadBytes('\n')
		if line = bytes.TrimSpace(bytes.TrimPrefix(line, []byte("\ufeff"))); len(line) > 0 {
			select {
			case lines <- line:
			case <-p.ctx.Done():
				return
			}
		}
		if err != nil {
			break
		}
	}
	p.cancelCalls(func(c *call) bool { return c.msg.Method == wire.MethodListen })
	time.AfterFunc(lingers, stop)
}

// take sends a line from the client, and returns when the next line may be sent. It waits until a
// request was written. For initialize, or a line without a request, it waits for the HTTP response.
func (p *pipe) take(line []byte, flights *sync.WaitGroup) {
	c := &call{body: line}
	c.ctx, c.cancel = context.WithCancel(p.ctx)
	msgs, batch, err := wire.ParseBody(line)
	for _, m := range msgs {
		if err == nil && m.Kind == wire.Request || err != nil && m.ID != nil {
			c.waits = append(c.waits, m.ID)
		}
	}
	if err == nil && !batch {
		c.msg = msgs[0]
		c.version, _ = wire.String(wire.Lookup(c.msg.Params, "_meta", wire.MetaProtocolVersion))
	}
	p.mu.Lock()
	switch {
	case c.msg.Method == wire.MethodInitialize:
		p.session, p.version, p.greeting = "", "", line
	case c.version != "":
		p.version = c.version
	}
	if len(c.waits) > 0 {
		p.calls = append(p.calls, c)
	}
	modern := p.session == "" && p.version != "" && !wire.Legacy(p.version)
	p.mu.Unlock()

	cancelled := func(*call) bool { return false }
	if c.msg.Method == wire.NotifyCancelled {
		id := wire.Lookup(c.msg.Params, "requestId")
		cancelled = func(o *call) bool {
			return slices.ContainsFunc(o.waits, func(w json.RawMessage) bool { return wire.SameID(w, id) })
		}
	}
	if c.msg.Method == wire.NotifyCancelled && modern { // in 2026-07-28, a client cancels a call by aborting its HTTP request
		c.cancel()
		p.cancelCalls(cancelled)
		return
	}
	on := make(chan struct{}) // closed when the next line may be sent
	passed := sync.OnceFunc(func() { close(on) })
	written := passed
	if len(c.waits) == 0 || c.msg.Method == wire.MethodInitialize {
		written = func() {}
	}
	flights.Go(func() {
		defer passed()
		defer p.end(c)
		p.exchange(c, written)
		p.cancelCalls(cancelled)
	})
	<-on
}

// end cancels a call and forgets it.
func (p *pipe) end(c *call) {
	c.cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = slices.DeleteFunc(p.calls, func(o *call) bool { return o == c })
}

// cancelCalls cancels the calls for which selected returns true. The client gets no response to them.
func (p *pipe) cancelCalls(selected func(*call) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.calls {
		if selected(c) {
			c.cancel()
		}
	}
}

// exchange sends a call, and passes on what the endpoint sends back. It reports whether the
// endpoint has accepted the call.
func (p *pipe) exchange(c *call, written func()) bool {
	resp, fault := p.send(c, written)
	if fault != nil {
		p.fail(c, fault)
		return false
	}
	p.receive(c, resp)
	if c.msg.Method == wire.NotifyInitialized {
		p.stand()
	}
	return true
}

// receive passes a response with status 2xx on to the client.
func (p *pipe) receive(c *call, resp *http.Response) {
	switch media, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";"); {
	case strings.TrimSpace(media) == wire.MediaSSE:
		p.stream(c, resp)
		return
	case len(c.waits) == 0:
		_ = resp.Body.Close()
		return
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxMessage))
	_ = resp.Body.Close()
	if err == nil && len(body) > 0 {
		p.hand(c, body)
	}
	if len(c.waits) == 0 {
		return
	}
	p.fail(c, &wire.Error{Code: wire.CodeOutcomeUnknown, Message: "the answer of " + p.where + " was lost or is none; whether the request was executed is not known"})
}

// hand passes a message, or a batch, on to the client, and records which requests now have a
// response.
func (p *pipe) hand(c *call, raw []byte) {
	if !wire.Valid(raw) {
		p.logf("%s sends what is no JSON; it is left out", p.where)
		return
	}
	msgs, _, err := wire.ParseBody(raw)
	if result := wire.Lookup(raw, "result"); err != nil && (result != nil || wire.Lookup(raw, "error") != nil) {
		msgs = []wire.Message{{Kind: wire.Response, ID: wire.Lookup(raw, "id"), Result: result}} // not valid JSON-RPC, but clearly a response
	}
	for _, m := range msgs {
		if m.Kind != wire.Response {
			continue
		}
		p.mu.Lock()
		c.waits = slices.DeleteFunc(c.waits, func(id json.RawMessage) bool { return wire.SameID(id, m.ID) })
		version, known := wire.String(wire.Lookup(m.Result, "protocolVersion"))
		if c.msg.Method == wire.MethodInitialize && known {
			p.version = version
		}
		if c.msg.Method == wire.MethodToolsList && c.version != "" && m.Result != nil {
			p.params = bridge.HeaderParams(m.Result)
		}
		p.mu.Unlock()
	}
	if !c.hidden {
		p.print(raw)
	}
}

// print writes a line to the client.
func (p *pipe) print(raw []byte) {
	p.out.Lock()
	defer p.out.Unlock()
	_, _ = p.Out.Write(append(bytes.Clone(wire.Compact(bytes.TrimSpace(raw))), '\n')) // an error is ignored: if the client is gone, In ends too
}

// fail sends an error response for those requests of a call that have no response yet. It sends
// none for a cancelled call.
func (p *pipe) fail(c *call, fault *wire.Error) {
	if c.ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	waits := c.waits
	c.waits = nil
	p.mu.Unlock()
	if !c.hidden {
		for _, id := range waits {
			p.print(wire.ErrorResponse(id, fault))
		}
	}
	if len(waits) == 0 && len(c.body) > 0 {
		p.logf("a message was not taken: %s", fault.Message)
	}
}

// logf prints a sentence for the user.
func (p *pipe) logf(format string, args ...any) {
	_, _ = fmt.Fprintf(p.Log, "dormouse stdio: "+format+"\n", args...)
}

// send posts a call to the endpoint. If the endpoint refuses it for lack of a sign-in, a session or
// headers, send signs the user in, opens another session, or reads the list of tools. Then it posts
// again. The error is for the client.
func (p *pipe) send(c *call, written func()) (*http.Response, *wire.Error) {
	var renewed, listed bool
	signed := 0
	for {
		session, params := p.known()
		resp, fault := p.do(c, http.MethodPost, params, session, "", written)
		if fault != nil {
			return nil, fault
		}
		if resp.StatusCode < 300 {
			if id := resp.Header.Get(wire.HeaderSessionID); id != "" && c.msg.Method == wire.MethodInitialize {
				p.mu.Lock()
				p.session = id
				p.mu.Unlock()
			}
			return resp, nil
		}
		if p.login != nil && signed < 2 && p.login.wanted(resp) {
			if err := p.login.authorize(c.ctx, resp, signed == 0); err != nil {
				return nil, &wire.Error{Code: wire.CodeServer, Message: fmt.Sprintf("sign in at %s: %v", p.where, err)}
			}
			signed++
			continue
		}
		refused, code := p.refusal(c, resp)
		switch {
		case resp.StatusCode == http.StatusNotFound && session != "" && !c.hidden && !renewed && p.renew(session):
			renewed = true
		case code == wire.CodeHeaderMismatch && c.msg.Method == wire.MethodToolsCall && !listed:
			listed = true
			p.list(c)
		default:
			return nil, refused
		}
	}
}

// known returns the current session id, and which arguments must be repeated in headers.
func (p *pipe) known() (session string, params json.RawMessage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.session, p.params
}

// do sends an HTTP request for the call, and calls onWritten when the request was written. The
// argument last is the Last-Event-ID.
func (p *pipe) do(c *call, method string, params json.RawMessage, session, last string, onWritten func()) (*http.Response, *wire.Error) {
	var body io.Reader
	if method == http.MethodPost {
		body = bytes.NewReader(c.body)
	}
	req, err := http.NewRequestWithContext(whenWritten(c.ctx, onWritten), method, p.URL, body)
	if err != nil {
		return nil, &wire.Error{Code: wire.CodeServer, Message: "the URL of the endpoint is none"}
	}
	p.setHeader(req.Header, c, params, session, last)
	token := p.Key
	if p.login != nil {
		token = p.login.token()
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := p.http.Do(req)
	if err == nil {
		return resp, nil
	}
	if cause := new(url.Error); errors.As(err, &cause) {
		err = cause.Err // leaves out the URL, which may contain a secret
	}
	if dial := new(net.OpError); errors.As(err, &dial) && dial.Op == "dial" {
		return nil, &wire.Error{Code: wire.CodeServer, Message: fmt.Sprintf("nothing answers at %s: %v", p.where, err)}
	}
	return nil, &wire.Error{Code: wire.CodeOutcomeUnknown, Message: fmt.Sprintf("%s did not answer; whether the request was executed is not known: %v", p.where, err)}
}

func (p *pipe) setHeader(h http.Header, c *call, params json.RawMessage, session, last string) {
	h.Set("Accept", wire.MediaSSE)
	if c.body != nil {
		h.Set("Accept", wire.MediaJSON+", "+wire.MediaSSE)
		h.Set("Content-Type", wire.MediaJSON)
	}
	p.mu.Lock()
	version := p.version
	p.mu.Unlock()
	if c.version != "" {
		version = c.version
		h.Set(wire.HeaderMethod, c.msg.Method)
		if name, wanted := bridge.HeaderName(c.msg); wanted {
			h.Set(wire.HeaderName, wire.EncodeHeaderValue(name))
		}
		if c.msg.Method == wire.MethodToolsCall {
			for name, value := range bridge.ParamHeaders(params, c.msg.Params) {
				h.Set(wire.HeaderParamPrefix+name, wire.EncodeHeaderValue(value))
			}
		}
	}
	for name, value := range map[string]string{wire.HeaderProtocolVersion: version, wire.HeaderSessionID: session, wire.HeaderLastEventID: last} {
		if value != "" && (c.msg.Method != wire.MethodInitialize || last != "") {
			h.Set(name, value)
		}
	}
}

// refusal reads the response to a refused request. It returns the error for the client, and the
// code in the response, or 0.
func (p *pipe) refusal(c *call, resp *http.Response) (*wire.Error, wire.Code) {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxMessage)) // on an error, the part that was read may suffice
	_ = resp.Body.Close()
	m, err := wire.Parse(body)
	if err != nil || m.Kind != wire.Response || m.Error == nil {
		text := fmt.Sprintf("%s answers %s", p.where, resp.Status)
		if resp.StatusCode == http.StatusUnauthorized && p.Key != "" {
			text += ": the key is not taken"
		}
		return &wire.Error{Code: wire.CodeServer, Message: text}, 0
	}
	var fault struct {
		Code    wire.Code
		Message string
		Data    json.RawMessage
	}
	_ = json.Unmarshal(m.Error, &fault) // m.Error is an object; an invalid code becomes 0
	e := &wire.Error{Code: fault.Code, Message: fault.Message}
	if fault.Data != nil {
		e.Data = fault.Data
	}
	return e, fault.Code
}

// renew opens a new session, unless another call has done so. The argument expired is the id of the
// session that the endpoint no longer knows. The result is true if there is a new session now.
func (p *pipe) renew(expired string) bool {
	p.renewing.Lock()
	defer p.renewing.Unlock()
	p.mu.Lock()
	now, greeting := p.session, p.greeting
	p.mu.Unlock()
	if now != expired || greeting == nil {
		return now != expired
	}
	p.logf("%s does not know the session any more: a new one is opened, without what the old one held", p.where)
	m, err := wire.Parse(greeting)
	if err != nil {
		return false
	}
	for _, body := range [][]byte{greeting, wire.NewNotification(wire.NotifyInitialized, nil)} {
		if !p.own(body, m.ID) {
			return false
		}
		m = wire.Message{}
	}
	now, _ = p.known()
	return now != expired
}

// list requests the list of tools, which says what arguments must be in headers. The request has
// the same _meta as the call c.
func (p *pipe) list(c *call) {
	id := json.RawMessage(`"dormouse-list"`)
	params, ok := wire.Replace(json.RawMessage(`{"_meta":{}}`), wire.Lookup(c.msg.Params, "_meta"), "_meta")
	if ok {
		p.own(wire.NewRequest(id, wire.MethodToolsList, params), id)
	}
}

// own sends a message of the pipe itself, whose response the client does not get. It reports
// whether the endpoint has accepted it.
func (p *pipe) own(body []byte, id json.RawMessage) bool {
	m, err := wire.Parse(body)
	if err != nil {
		return false
	}
	c := &call{body: body, msg: m, hidden: true}
	c.version, _ = wire.String(wire.Lookup(m.Params, "_meta", wire.MetaProtocolVersion))
	if id != nil {
		c.waits = []json.RawMessage{id}
	}
	c.ctx, c.cancel = context.WithTimeout(p.ctx, time.Minute)
	defer c.cancel()
	return p.exchange(c, func() {})
}

// leave ends the session at the endpoint.
func (p *pipe) leave() {
	session, _ := p.known()
	if session == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), leavesIn)
	defer cancel()
	c := &call{ctx: ctx, cancel: cancel}
	if resp, fault := p.do(c, http.MethodDelete, nil, session, "", func() {}); fault == nil {
		_ = resp.Body.Close() // the status is ignored, because an endpoint may refuse to end sessions
	}
}

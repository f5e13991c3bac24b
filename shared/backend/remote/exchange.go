package remote

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// exchange is one request of a client to a server, with what is needed to send it.
type exchange struct {
	s       *server
	r       native.Request
	client  *http.Client
	url     *url.URL
	header  http.Header
	secrets []string // values of headers, which errors must not show
	forget  []func() // make Server.Run execute the commands again for the next request
	lacks   bool     // the caller lacks a key or token that a header needs
	link    link
	offers  era // the newest era of the server, as greet found out
	req     bridge.Request
	out     native.Answer // Whole, Asks and State, if the messages pass as they are
	flow    *flow         // counts the bytes of the next stream; nil: the stream gets a counter of its own
}

// exchange prepares a request: the URL and the headers with the secrets of its caller.
func (s *server) exchange(ctx context.Context, r native.Request) (*exchange, *wire.Error) {
	x := &exchange{s: s, r: r, client: s.public, header: http.Header{}}
	if s.Private {
		x.client = s.private
	}
	has := r.Secrets
	if has == nil && len(s.Providers) > 0 && s.Secrets != nil {
		var err error
		if has, err = s.Secrets(ctx, storage.Session{ID: storage.ID(r.Session.ID()), Tenant: r.Session.Tenant(), Principal: r.Session.Principal(), Server: s.Name}); err != nil {
			return nil, failure(phaseRuntime, "what the user has at third parties cannot be read; try again")
		}
	}
	for name, value := range s.Headers {
		for _, provider := range s.Providers {
			value = strings.ReplaceAll(value, "${principal:"+provider+"}", has[provider].Value)
			if has[provider].Value == "" && strings.Contains(s.Headers[name], "${principal:"+provider+"}") {
				value, x.lacks = "", true // many servers list their tools without the header
			}
		}
		if value == "" {
			continue
		}
		x.set(name, value)
	}
	for name, command := range s.Commands {
		if s.Run == nil {
			return nil, failure(phaseInit, "header %s is a command, which only dormouse run executes", name)
		}
		value, forget, err := s.Run(ctx, command)
		if err != nil {
			return nil, failure(phaseInit, "header %s: %v", name, err)
		}
		x.set(name, value)
		x.forget = append(x.forget, forget)
	}
	for name := range x.header {
		if strings.ContainsFunc(x.header.Get(name), func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
			return nil, failure(phaseInit, "header %s has a line break, or another character that no header may have", name)
		}
	}
	var err error
	if x.url, err = url.Parse(s.URL); err != nil || x.url.Host == "" {
		return nil, failure(phaseInit, "the URL of the remote server %s is no URL", s.Name)
	}
	for _, values := range x.url.Query() {
		for _, value := range values {
			if len(value) >= 6 {
				x.secrets = append(x.secrets, value)
			}
		}
	}
	slices.SortFunc(x.secrets, func(a, b string) int { return len(b) - len(a) })
	return x, nil
}

// set sets a header. The value of the header is a secret, which must not appear in errors.
func (x *exchange) set(name, value string) {
	x.header.Set(name, value)
	for _, part := range append(strings.Fields(value), value) {
		if len(part) >= 6 {
			x.secrets = append(x.secrets, part)
		}
	}
}

// send has the server answer the request. send opens a session at the server if there is
// none, and another, once, if the server does not know the session any more.
func (x *exchange) send(ctx context.Context) (json.RawMessage, *wire.Error) {
	m := wire.Message{Kind: wire.Request, ID: json.RawMessage("1"), Method: x.r.Method, Params: x.r.Params}
	req, err := bridge.ReadRequest(m)
	if err != nil {
		var e *wire.Error
		errors.As(err, &e)
		return nil, e
	}
	x.req = req
	var anew, renewed, again bool
	for {
		if err := x.open(ctx, anew); err != nil {
			if result := x.unconnected(err); result != nil {
				return result, nil
			}
			if no, ok := errors.AsType[*refusal](err); ok && no.status != http.StatusUnauthorized && x.r.Method == wire.MethodDiscover {
				if result, fault, err := x.answerOf(err); err == nil {
					return result, fault
				}
			}
			return nil, x.faultOf(phaseInit, err)
		}
		anew = false
		result, fault, err := x.once(ctx)
		if x.r.Once {
			defer x.leave(ctx)
		}
		var refused *refusal
		switch {
		case err == nil:
			return result, fault
		case errors.As(err, &refused) && refused.first && !renewed:
			anew, renewed = true, true
			continue // the server refused the request, so it did not run
		case errors.Is(err, errLost) && !again && x.reads():
			again = true
			continue // the request only reads, so running twice does no harm
		}
		if result := x.unconnected(err); result != nil {
			return result, nil
		}
		return nil, x.faultOf(phaseCall, err)
	}
}

// reads reports whether the request only reads. The method of an extension may do more.
func (x *exchange) reads() bool {
	return x.r.Method != wire.MethodToolsCall && !wire.OfExtension(x.r.Method)
}

// The request is sent in the protocol that x.link names.
func (x *exchange) once(ctx context.Context) (json.RawMessage, *wire.Error, error) {
	switch {
	case x.r.Method == wire.MethodSetLevel && x.link.Era != eraHTTP: // no session at the server keeps the level
		return json.RawMessage("{}"), nil, nil
	case x.link.Era == eraModern:
		return x.modern(ctx)
	case x.r.Method == wire.MethodDiscover:
		if m, err := wire.Parse(x.r.Raw); err == nil && m.Method == wire.MethodInitialize {
			x.out.Whole = wire.ResultResponse(m.ID, bridge.ReadLegacy(x.r.Init).Initialized(bridge.Unheard(x.link.Handshake, x.link.Era == eraHTTP)))
		}
		return bridge.Unheard(bridge.Discover(x.link.Handshake, false), x.link.Era == eraHTTP), nil, nil
	default:
		return x.legacy(ctx)
	}
}

// passes reports whether client and server are both legacy, so that their messages pass as they are.
func (x *exchange) passes() bool {
	return x.r.Raw != nil && x.link.Era != eraModern
}

// modern sends the request to a server of 2026-07-28.
func (x *exchange) modern(ctx context.Context) (json.RawMessage, *wire.Error, error) {
	known, _ := recall(x.s.Servers, x.s.headers, x.s.URL)
	m, err := x.modernOnce(ctx, x.r.Method, x.r.Params, known)
	if x.r.Method == wire.MethodToolsCall && string(wire.Lookup(m.Error, "code")) == "-32020" {
		// The server wants arguments repeated in headers, as its list of tools says.
		params, _ := wire.Replace(json.RawMessage(`{"_meta":{}}`), wire.Lookup(x.r.Params, "_meta"), "_meta")
		if list, bad := x.modernOnce(ctx, wire.MethodToolsList, params, nil); bad == nil && list.Error == nil {
			known = bridge.HeaderParams(list.Result)
			remember(x.s.Servers, x.s.headers, x.s.URL, known)
			m, err = x.modernOnce(ctx, x.r.Method, x.r.Params, known)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if x.r.Method == wire.MethodDiscover {
		m.Result = bridge.Unheard(m.Result, false)
	}
	return x.answered(m)
}

// modernOnce sends a request to a server of 2026-07-28, and returns the response. The argument known
// says which headers the request has to have.
func (x *exchange) modernOnce(ctx context.Context, method string, params, known json.RawMessage) (wire.Message, error) {
	id := requestID()
	m := wire.Message{Kind: wire.Request, Method: method, Params: params}
	header := http.Header{}
	header.Set(wire.HeaderProtocolVersion, wire.V20260728)
	header.Set(wire.HeaderMethod, method)
	if name, wanted := bridge.HeaderName(m); wanted {
		header.Set(wire.HeaderName, wire.EncodeHeaderValue(name))
	}
	for name, value := range bridge.ParamHeaders(known, params) {
		header.Set(wire.HeaderParamPrefix+name, wire.EncodeHeaderValue(value))
	}
	talk, err := x.ask(ctx, wire.NewRequest(id, method, params), header)
	if err != nil {
		return responseIn(err)
	}
	defer talk.close()
	for {
		e, err := talk.next(ctx)
		if err != nil {
			return wire.Message{}, err
		}
		m, err := talk.read(e.Data, id)
		switch {
		case errors.As(err, new(*unreadable)):
			return wire.Message{}, err
		case err != nil:
		case m.Kind == wire.Notification:
			if raw := bridge.PlainNotification(m); raw != nil {
				x.r.Say(raw)
			}
		case m.Kind == wire.Response && wire.SameID(m.ID, id):
			return m, nil
		}
	}
}

// responseIn returns the JSON-RPC response in err, a refusal. If there is none, it returns err.
func responseIn(err error) (wire.Message, error) {
	if refused, ok := errors.AsType[*refusal](err); ok && refused.raw != nil && !refused.first {
		if m, bad := wire.Parse(refused.raw); bad == nil {
			return m, nil
		}
	}
	return wire.Message{}, err
}

// answerOf returns the answer to a request that failed with err: the response in err, or else err.
func (x *exchange) answerOf(err error) (json.RawMessage, *wire.Error, error) {
	m, err := responseIn(err)
	if err != nil {
		return nil, nil, err
	}
	return x.answered(m)
}

// answered returns what the response m says. An error passes as it is in all versions, but for the
// code of a resource that is missing.
func (x *exchange) answered(m wire.Message) (json.RawMessage, *wire.Error, error) {
	if m.Error == nil && !x.passes() {
		return m.Result, nil, nil
	}
	if x.out.Whole = m.Raw; x.link.Era == eraModern && x.r.Legacy {
		x.out.Whole, _ = wire.Replace(m.Raw, bridge.PlainFault(x.r.Method, m.Error), "error")
	}
	return nil, nil, nil
}

func requestID() json.RawMessage { return json.RawMessage(`"` + string(storage.NewID()) + `"`) }

package transport

import (
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Clients of every protocol version come to one family of paths:
//
//	/<server>/mcp      POST            Streamable HTTP: a message
//	                   GET             the standalone stream, or one that goes on
//	                   GET             with no session and no version: as /<server>/sse
//	                   DELETE          the end of a session
//	/<server>/sse      GET             HTTP+SSE: the event stream
//	/<server>/message  POST            HTTP+SSE: a message
//	/<server>/ticket   POST            a ticket for one WebSocket connection
//
// [Group] has the addresses of several servers.
//
// A client that tries the newest transport first may post to the URL of an event stream: 405
// tells it to try the next one.

// serve does the checks that all requests share, and then serves the request by its
// route. An error that it returns has not been answered.
func (x *exchange) serve() (err error) {
	if x.isDiscovery() {
		return x.discovery()
	}
	if err := x.admit(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			nameRefused(x)
		}
	}()
	if x.r.Method == http.MethodOptions {
		x.preflight()
		return nil
	}
	if x.r.URL.Path == "/" && wantsPage(x.r) {
		page(x, http.StatusOK, "")
		return nil
	}
	to, err := x.route()
	if err != nil {
		return err
	}
	p, err := x.arrives(to)
	if err != nil {
		return err
	}
	x.party = p
	if wantsPage(x.r) {
		page(x, http.StatusOK, "")
		return nil
	}
	release, err := x.opts.admitted(x.ctx(), x.caller)
	if err != nil {
		return err
	}
	defer release()
	return to.serve()
}

// arrives authenticates the caller at the server or the group that a request is for.
func (x *exchange) arrives(to destination) (party, error) {
	find := func(group string, names []string) (map[string]storage.Identity, error) {
		may, err := x.opts.Auth.Members(x.r, group, names)
		if err != nil {
			_, known := x.opts.Servers(to.name)
			x.challenge(known || to.group != nil, err)
		}
		return may, err
	}
	if to.group != nil {
		return x.opts.atGroup(to.name, *to.group, storage.HTTP, find)
	}
	return x.opts.atServer(x.r, to.name, "there is no such server; servers are at /<server>/mcp", storage.HTTP, find)
}

type destination struct {
	name  string // name of a server, or address of a group
	group *Group // nil if the destination is a server
	serve func() error
}

// route returns what the path names, with the function that serves the request.
func (x *exchange) route() (to destination, err error) {
	name, resource, ok := groupOf(x.r.URL.Path)
	if ok && (resource != "ticket" || x.opts.Tickets != nil) {
		if g, known := x.opts.groupNamed(name, x.r.URL.Query()); known {
			to.name, to.group = groupAddress(name), &g
		}
	}
	if to.group == nil {
		if ok && name != "" && resource != "ticket" {
			return to, refusal(http.StatusNotFound, storage.NotFound, wire.CodeServer, "there is no group "+wire.Clip(name)+"; check the name behind /g/")
		}
		if asksForCard(x.r.URL.Path) {
			return to, noCard()
		}
		if to.name, resource, ok = split(x.r.URL.Path); !ok {
			resource = ""
		}
	}
	allowed := ""
	var verbs map[string]func(*exchange) error
	switch {
	case resource == "mcp":
		allowed, verbs = methods, map[string]func(*exchange) error{http.MethodPost: postStreamable, http.MethodGet: getStreamable, http.MethodDelete: deleteStreamable}
	case resource == "sse":
		allowed, verbs = methodsSSE, map[string]func(*exchange) error{http.MethodGet: getSSE}
	case resource == "message":
		allowed, verbs = methodsMessage, map[string]func(*exchange) error{http.MethodPost: postSSE}
	case resource == "ticket" && x.opts.Tickets != nil:
		allowed, verbs = methodsMessage, map[string]func(*exchange) error{http.MethodPost: (*exchange).ticket}
	}
	serve := verbs[x.r.Method]
	switch {
	case allowed == "":
		return to, refusal(http.StatusNotFound, storage.NotFound, wire.CodeServer, "there is nothing at this path; servers are at /<server>/mcp")
	case serve == nil:
		return to, notAllowed(allowed, "this method is not served here; use "+strings.TrimSuffix(allowed, ", OPTIONS"))
	}
	to.serve = func() error { return serve(x) }
	return to, nil
}

// refuse answers an error. Call it only before anything has been sent.
func (x *exchange) refuse(err error) {
	x.w.Header().Del(wire.HeaderSessionID)
	if x.refuseBusy(err) {
		x.err = err
		return
	}
	p := x.failed(err)
	if wantsPage(x.r) {
		page(x, p.status, p.rpc.Message)
		return
	}
	x.json(p.status, wire.ErrorResponse(x.id, p.rpc))
}

// failed records err as the error of the request, sets the headers of the answer, and returns the
// answer.
func (x *exchange) failed(err error) *problem {
	p := problemOf(err)
	x.err = logged(err, p)
	switch p.status {
	case http.StatusMethodNotAllowed:
		x.w.Header().Set("Allow", p.allow)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if !p.lasts {
			x.w.Header().Set("Retry-After", strconv.Itoa(limitOf(err).Seconds))
		}
	}
	return p
}

// refuseBusy answers requests that a limit refuses, each with a response of its own. It returns false
// and answers nothing if err is another error, if the caller is far over its limit (see flood), or if
// there are no requests.
func (x *exchange) refuseBusy(err error) bool {
	if problemOf(err).status != http.StatusTooManyRequests || flood(err) {
		return false
	}
	answers := busyAll(x.msgs, err, isModern(x.r.Header.Get(wire.HeaderProtocolVersion)))
	if len(answers) > 0 {
		x.json(http.StatusOK, joined(answers, x.batch))
	}
	return len(answers) > 0
}

// maxRefused bounds a body that the endpoint reads only to name the request that it refuses, in
// bytes.
const maxRefused = 16 << 10

// nameRefused finds out which request is refused before its body is read, so that the error response
// has its id (JSON-RPC 2.0, §5): some clients hide an error without one. nameRefused reads no body
// that is long, compressed or of unknown length, because the caller may be unknown.
func nameRefused(x *exchange) {
	if x.read || x.r.Method != http.MethodPost || x.r.ContentLength <= 0 || x.r.ContentLength > maxRefused || x.r.Header.Get("Content-Encoding") != "" {
		return
	}
	if body, err := x.body(); err == nil {
		msgs, _, _ := wire.ParseBody(body)
		x.method, x.id = subject(msgs)
	}
}

// finish catches a panic and writes the log line. Defer it.
func (x *exchange) finish() {
	fault := recover()
	if fault == nil {
		x.tell("")
		return
	}
	begun := x.status != 0
	x.err = storage.Errorf(storage.Internal, "panic: %v", fault)
	if !begun {
		x.refuse(x.err)
	}
	x.tell(string(debug.Stack()))
	if begun {
		panic(http.ErrAbortHandler)
	}
}

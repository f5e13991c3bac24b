package front

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// exchange is one HTTP request and its answer: the part that every transport needs. It
// does the checks that all requests share, and writes whole answers, refusals and the
// log line. After the checks a transport takes over.
type exchange struct {
	opts  *Options
	w     http.ResponseWriter
	r     *http.Request
	begun time.Time

	party
	session session.ID
	id      json.RawMessage // id of the first request in the body; error responses carry it
	method  string          // method of that request, or else of the first message
	msgs    []wire.Message  // what was posted, once it is known not to be a poll
	batch   bool            // it was posted as a batch
	read    bool            // the body was read, or an attempt was made
	status  int             // the status that was sent; 0: none yet
	sent    *counter        // counts the body of the answer; nil without a meter
	err     error           // what went wrong, even if the status reports success
	called  called
}

// saw notes the end of a call among its events, for the log line.
func (x *exchange) saw(events []host.Event) {
	if x.called.tool == "" && x.r.Method != http.MethodGet || len(events) == 0 {
		return
	}
	if last := events[len(events)-1]; last.Final && len(last.Raw) > 0 {
		x.called.ends(last.Raw, x.opts.ShowErrors)
	}
}

func (x *exchange) ctx() context.Context { return x.r.Context() }

// detached returns a context for work that must be done even after the client has gone.
func (x *exchange) detached() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(x.ctx()), spare)
}

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
	if x.connect() {
		return nil
	}
	if x.r.URL.Path == "/" && (browser{x}).asks() {
		browser{x}.page(http.StatusOK, "")
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
	if (browser{x}).asks() {
		browser{x}.page(http.StatusOK, "")
		return nil
	}
	x.party = p
	release, err := x.opts.admitted(x.ctx(), x.caller)
	if err != nil {
		return err
	}
	defer release()
	return to.serve()
}

// arrives returns the caller at the server or the group that a request is for.
func (x *exchange) arrives(to destination) (party, error) {
	if to.group != nil {
		return x.opts.atGroup(to.name, *to.group, session.HTTP, func(names []string) (map[string]session.Identity, error) {
			may, err := x.opts.Auth.Members(x.r, to.name, names)
			if err != nil {
				x.challenge(true, err)
			}
			return may, err
		})
	}
	who, err := whole(x.opts.Auth.Authenticate(x.r, to.name))
	if err != nil {
		_, known := x.opts.Servers(to.name)
		x.challenge(known, err)
		return party{}, err
	}
	server, err := x.opts.server(x.r, to.name, "there is no such server; servers are at /<server>/mcp")
	if err != nil {
		return party{}, err
	}
	return party{caller: x.opts.caller(who, server, session.HTTP)}, nil
}

// at returns what the caller speaks to over a transport.
func (x *exchange) at(over session.Transport) host.Endpoint { return x.opts.endpoint(x.party, over) }

// until returns when a response must end. The response may be held open for as long as
// hold.
func (x *exchange) until(hold time.Duration) time.Time {
	end := x.begun.Add(min(hold, x.opts.Limit))
	if limit, ok := x.ctx().Deadline(); ok {
		end = earlier(end, limit.Add(-spare))
	}
	return end
}

// spare is how long before the end of a function's time it begins to close its stream.
const spare = 2 * time.Second

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// json sends a complete answer in JSON.
func (x *exchange) json(status int, body []byte) {
	x.w.Header().Set("Content-Type", wire.MediaJSON)
	if x.opts.AnswerFirst {
		x.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	x.empty(status)
	// A client that has gone misses its answer; nothing can be done about it.
	if x.r.Method != http.MethodHead {
		_, _ = x.w.Write(body)
	}
	if x.opts.AnswerFirst {
		_ = http.NewResponseController(x.w).Flush()
	}
}

// text answers with a few words for people. Clients do not read them.
func (x *exchange) text(status int, body string) {
	x.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	x.empty(status)
	_, _ = x.w.Write([]byte(body)) // as in json
}

// empty answers without a body.
func (x *exchange) empty(status int) {
	x.status = status
	x.w.WriteHeader(status)
}

// finish catches a panic and writes the log line. Defer it.
func (x *exchange) finish() {
	fault := recover()
	if fault == nil {
		x.log()
		return
	}
	begun := x.status != 0
	x.err = session.Errorf(session.Internal, "panic: %v", fault)
	if !begun {
		x.refuse(x.err)
	}
	x.log(slog.String("stack", string(debug.Stack())))
	if begun {
		panic(http.ErrAbortHandler)
	}
}

// refuse answers an error. Call it only before anything has been sent.
func (x *exchange) refuse(err error) {
	p := problemOf(err)
	if x.err = err; session.CodeOf(err) != p.code {
		x.err = p
	}
	h := x.w.Header()
	h.Del(wire.HeaderSessionID)
	if x.refuseBusy(err) {
		return
	}
	switch p.status {
	case http.StatusMethodNotAllowed:
		h.Set("Allow", p.allow)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		h.Set("Retry-After", retryAfter(err))
	}
	if (browser{x}).asks() {
		browser{x}.page(p.status, p.rpc.Message)
		return
	}
	x.json(p.status, wire.ErrorResponse(x.id, p.rpc))
}

// commit begins an event stream. From then on no status can report an error. The stream
// can only let the client come back.
func (x *exchange) commit() *stream {
	h := x.w.Header()
	h.Set("Content-Type", wire.MediaSSE)
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	x.empty(http.StatusOK)
	return &stream{w: x.w, polls: polls(x)}
}

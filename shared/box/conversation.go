package box

import (
	"cmp"
	"container/list"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// Limits of what one process may have open, so that neither clients nor the server can fill the
// memory of the box.
const (
	maxRequests  = 1024 // requests of the client in flight
	maxQuestions = 1024 // questions of the server without an answer
	maxID        = 1024 // bytes of an id or progress token
)

// processSide receives what a conversation sends to the process.
type processSide interface {
	// send writes a line to the process. The argument number is the number of the request in the
	// line, 0 if the line is no request. send returns false if too many bytes already wait for the
	// process to read.
	send(number int64, line []byte) bool
	// withdraw makes the process stop working on a request. withdraw sends line, a
	// notifications/cancelled, unless the request is a task, which is cancelled in another way.
	withdraw(r *request, line []byte)
}

// clientSide receives what a conversation sends to clients.
type clientSide interface {
	// event sends a message to the client of a stream. A nil stream is the standalone stream. final
	// marks the last event of the stream.
	event(to *stream, raw []byte, final bool)
	// direct returns the session whose client gets a request of the process, nil if the process has
	// one session only, or the error with which the request is refused. The argument owner is the
	// call to which the request may belong, nil for none; mixed is true if calls of several
	// principals are in flight.
	direct(owner *request, mixed bool, m wire.Message) (*session, *wire.Error)
}

// clockSide is told what starts and stops the timers of requests and of the process.
type clockSide interface {
	// opened is called when the process asks the client something for a request. closed is called
	// when that question or its request ends.
	opened(q *question)
	closed(q *question)
	// quiet is called when no request is in flight any more.
	quiet()
	// over is called when a request that was sent to the process ends.
	over()
}

// conversation is the state of the messages between clients and one process: it knows the client
// and the stream of each request. It does no I/O, reads no clock, starts no goroutine and takes no
// lock. Its caller must hold [Box].mu.
//
// The process never sees the ids of clients. Every request gets a number, which is its id and its
// progress token in the process, because two clients may use equal ids.
//
// The conversation never changes a byte slice that it has passed on. It composes every
// message anew from the parts that [wire.Parse] has found, and leaves out other top-level members.
type conversation struct {
	pipe    processSide
	clients clientSide
	clock   clockSide
	shared  bool // several sessions share the process

	draw      func() int64   // returns the number for a new request, never 0
	kept      map[int64]bool // numbers of the box's own requests so far, which no other request may get
	came      int64          // how many requests came so far
	requests  map[int64]*request
	renamed   map[int64]*request // requests that were sent again under another number, by that number
	byID      map[clientID]*request
	passed    *list.List           // the requests, as *request, that were sent to the process, oldest first
	questions map[string]*question // open questions, by the id that the client sees
	asked     map[string]*question // open questions, by the [idKey] of the id that the process gave them
	questionN int64                // how many questions the process has asked so far
}

// newConversation makes a conversation. The caller sets the fields pipe and clock.
func newConversation(draw func() int64, shared bool, to clientSide) *conversation {
	return &conversation{
		draw: draw, shared: shared, clients: to, kept: map[int64]bool{},
		requests: map[int64]*request{}, renamed: map[int64]*request{}, byID: map[clientID]*request{}, passed: list.New(),
		questions: map[string]*question{}, asked: map[string]*question{},
	}
}

// numbers returns a function that draws random request numbers, from 1. If several sessions share
// a process, a number has 53 bits, so that one client cannot guess the number of another one's
// request; JavaScript cannot represent larger integers. For a process of one session, a number has
// 31 bits, because some servers keep an id in 32 bits.
func numbers(scope Scope) func() int64 {
	bits := 31
	if scope.wide() {
		bits = 53
	}
	return func() int64 {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		return 1 + int64(binary.LittleEndian.Uint64(b[:])>>(64-bits))%(1<<bits-1)
	}
}

// number draws a number that no request in flight has and that none of the box's own requests ever
// had.
func (c *conversation) number() int64 {
	for {
		n := c.draw()
		if !c.knows(n) {
			return n
		}
	}
}

func (c *conversation) knows(n int64) bool {
	return c.requests[n] != nil || c.renamed[n] != nil || c.kept[n]
}

// own draws a number for a request of the box itself. The number is never used again.
func (c *conversation) own() int64 {
	n := c.number()
	c.kept[n] = true
	return n
}

// idle reports whether no request of a client is in flight. A request stays in flight while its
// client is asked a question. A question that belongs to no request does not count, because a
// client that has gone never answers.
func (c *conversation) idle() bool { return len(c.requests) == 0 }

// waits reports whether requests are in flight and each of them waits for an answer of its client.
func (c *conversation) waits() bool {
	for _, r := range c.requests {
		if r.passed == nil || r.asked == 0 {
			return false
		}
	}
	return !c.idle()
}

// # Messages from clients

// add registers a request of a client, or returns the error with which the request is refused.
func (c *conversation) add(st *stream, m wire.Message) (*request, *wire.Error) {
	key := clientID{st.session, idKey(m.ID)}
	token := wire.Lookup(m.Params, "_meta", wire.MetaProgressToken)
	switch {
	case len(m.ID) > maxID || len(token) > maxID:
		return nil, &wire.Error{Code: wire.CodeInvalidRequest, Message: fmt.Sprintf("request id or progress token of more than %d bytes", maxID)}
	case c.byID[key] != nil:
		return nil, &wire.Error{Code: wire.CodeInvalidRequest, Message: "duplicate request id"}
	}
	if idKey(token) == "" {
		token = nil // not a valid token, so the process gets it as it is
	}
	c.came++
	r := &request{number: c.number(), order: c.came, id: m.ID, token: token, method: m.Method, stream: st, modern: bridge.SaysModern(m.Params)}
	r.sent = r.number
	c.requests[r.number], c.byID[key] = r, r
	return r, nil
}

// pass sends a registered request to the process, or holds it until the process is ready. pass
// returns false if the queue of the process is full.
func (c *conversation) pass(r *request, m wire.Message) bool {
	m.ID = strconv.AppendInt(nil, r.number, 10)
	if r.token != nil {
		m.Params, _ = wire.Replace(m.Params, m.ID, "_meta", wire.MetaProgressToken)
	}
	return c.pipe.send(r.number, m.Line())
}

// known marks a request as sent to the process.
func (c *conversation) known(r *request) {
	if r.passed == nil {
		r.passed = c.passed.PushBack(r)
	}
}

// cancel ends the request that a client's notifications/cancelled names, and cancels it in the
// process. cancel returns nil if the session has no such request in this conversation.
func (c *conversation) cancel(s *session, m wire.Message) *request {
	m = c.notice(m)
	r := c.byID[clientID{s, idKey(wire.Lookup(m.Params, "requestId"))}]
	if r == nil || r.method == wire.MethodInitialize {
		return nil // initialize must not be cancelled (MCP 2025-11-25, basic/utilities/cancellation)
	}
	if r.passed != nil {
		m.Params, _ = wire.Replace(m.Params, strconv.AppendInt(nil, r.sent, 10), "requestId")
		c.pipe.withdraw(r, m.Line())
	}
	c.end(r, wire.ErrorResponse(r.id, &wire.Error{Code: wire.CodeCancelled, Message: "request cancelled by the client"}))
	return r
}

// tellCancelled makes the process stop working on a request that ends although its client has not
// cancelled it.
func (c *conversation) tellCancelled(r *request, reason string) {
	if r.passed == nil {
		return
	}
	c.pipe.withdraw(r, wire.NewNotification(wire.NotifyCancelled, fmt.Appendf(nil, `{"requestId":%d,"reason":%q}`, r.sent, reason)))
}

// renumber gives a request a new number, under which the process answers it from now on.
func (c *conversation) renumber(r *request) int64 {
	delete(c.renamed, r.sent)
	r.sent = c.number()
	c.renamed[r.sent] = r
	return r.sent
}

// answer passes m, a client's response, to the process that asked the question. The argument
// visible is the id of the question as the client knows it. answer returns false if the session
// was not asked this question, or m is no response.
func (c *conversation) answer(s *session, visible string, m wire.Message) bool {
	q := c.questions[visible]
	if q == nil || m.Kind != wire.Response || q.session != nil && q.session != s {
		return false
	}
	m.ID = q.id
	c.pipe.send(0, m.Line())
	c.forget(q)
	return true
}

// mayReport reports whether a session's client may send m, a progress notification, to the
// process. If several sessions share the process, m must be about a question that this client was
// asked.
func (c *conversation) mayReport(s *session, m wire.Message) bool {
	if !c.shared {
		return true
	}
	token := wire.Lookup(m.Params, wire.MetaProgressToken)
	for _, q := range c.questions {
		if q.session == s && wire.SameID(q.token, token) {
			return true
		}
	}
	return false
}

// notice returns a client's notification in the form for the process. A progress token in its
// _meta could equal the number of a request, so notice replaces the token with an unused number.
func (c *conversation) notice(m wire.Message) wire.Message {
	if wire.Lookup(m.Params, "_meta", wire.MetaProgressToken) != nil {
		m.Params, _ = wire.Replace(m.Params, strconv.AppendInt(nil, c.number(), 10), "_meta", wire.MetaProgressToken)
	}
	return m
}

// # Messages from the process

// response passes a response of the process to the waiting client. response returns false if the
// request was cancelled or never existed.
func (c *conversation) response(m wire.Message) bool {
	r := c.request(m.ID)
	if r == nil {
		return false
	}
	m.ID = r.id
	c.release(r)
	c.end(r, m.Line())
	return true
}

// release is called when the process answers r. If questions of r are still open, the box has
// assigned them to r by mistake. release assigns them to the newest other request of the same
// session, or to none. If r comes from a client of 2026-07-28, its questions end, because that
// client is asked only in responses.
func (c *conversation) release(r *request) {
	var heir *request
	for e := c.passed.Back(); e != nil && heir == nil; e = e.Prev() {
		if other, _ := e.Value.(*request); other != r && !other.modern && other.stream.session == r.stream.session {
			heir = other
		}
	}
	for _, q := range c.questions {
		if q.call != r || r.modern {
			continue
		}
		c.clock.closed(q)
		if q.call = heir; heir != nil {
			c.clock.opened(q)
		}
	}
}

// request finds the request in flight that has this id in the process.
func (c *conversation) request(id json.RawMessage) *request {
	n, ok := wire.Integer(id)
	if !ok {
		return nil
	}
	r := c.requests[n]
	if r == nil {
		r = c.renamed[n]
	}
	if r == nil || r.passed == nil || r.sent != n {
		return nil
	}
	return r
}

// ask sends a request of the process to a client as a question, or returns the error for the
// process. The id of the question is random, so that no client can guess it.
func (c *conversation) ask(m wire.Message) *wire.Error {
	if len(c.questions) >= maxQuestions || len(m.ID) > maxID {
		return &wire.Error{Code: wire.CodeInternal, Message: "too many requests to the client are open"}
	}
	owner, mixed := c.owner()
	to, refused := c.clients.direct(owner, mixed, m)
	if refused != nil {
		return refused
	}
	c.questionN++
	token := wire.Lookup(m.Params, "_meta", wire.MetaProgressToken)
	q := &question{visible: "q-" + uuid.NewString(), id: m.ID, token: token, order: c.questionN, session: to, call: owner}
	c.questions[q.visible], c.asked[idKey(m.ID)] = q, q
	m.ID = json.RawMessage(`"` + q.visible + `"`)
	c.clients.event(q.stream(), m.Line(), false)
	if q.call != nil {
		c.clock.opened(q)
	}
	return nil
}

// notification passes a notification of the process to the stream that it belongs to. notification
// returns false if no client may get m: its request or question has ended, or m is a log message
// while calls of several principals are in flight. The argument subscribed is true if the process
// sent m because of a subscription, so that m belongs to no call.
func (c *conversation) notification(m wire.Message, subscribed bool) bool {
	switch m.Method {
	case wire.NotifyProgress:
		return c.progress(m)
	case wire.NotifyCancelled:
		return c.withdraw(m)
	case wire.NotifyMessage:
		r, mixed := c.owner()
		switch {
		case mixed:
			return false
		case r != nil:
			if !c.shared || r.stream.session.wants(m) {
				c.clients.event(r.stream, m.Line(), false)
			}
			return true
		}
	default:
		// A client of 2026-07-28 perhaps has no open subscription, so it gets the notification of
		// an extension in the stream of its open request.
		if r, mixed := c.owner(); r != nil && r.modern && !mixed && !subscribed && wire.OfExtension(m.Method) {
			c.clients.event(r.stream, m.Line(), false)
			return true
		}
	}
	c.clients.event(nil, m.Line(), false)
	return true
}

// progress passes the progress of a request to its client, with the client's own token. progress
// returns false if no request wants it.
func (c *conversation) progress(m wire.Message) bool {
	n, ok := wire.Integer(wire.Lookup(m.Params, wire.MetaProgressToken))
	if !ok {
		return false
	}
	r := c.requests[n]
	if r == nil || r.passed == nil || r.token == nil {
		return false
	}
	m.Params, _ = wire.Replace(m.Params, r.token, wire.MetaProgressToken)
	c.clients.event(r.stream, m.Line(), false)
	return true
}

// withdraw passes a notifications/cancelled of the process to the client that was asked: the
// process no longer wants the answer.
func (c *conversation) withdraw(m wire.Message) bool {
	q := c.asked[idKey(wire.Lookup(m.Params, "requestId"))]
	if q == nil {
		return false
	}
	m.Params, _ = wire.Replace(m.Params, json.RawMessage(`"`+q.visible+`"`), "requestId")
	c.clients.event(q.stream(), m.Line(), false)
	c.forget(q)
	return true
}

// owner returns the newest request that was sent to the process, nil for none. A message of the
// process that names no request belongs to this one. The result mixed is true if requests of
// several principals are in flight.
func (c *conversation) owner() (newest *request, mixed bool) {
	for e := c.passed.Back(); e != nil; e = e.Prev() {
		r, _ := e.Value.(*request)
		switch {
		case newest == nil:
			newest = r
		case r.stream.session.principal != newest.stream.session.principal:
			return newest, true
		}
		if !c.shared {
			break // one session has one principal
		}
	}
	return newest, false
}

// # Ends of requests

// end gives a request its last event, and forgets the request and its questions.
func (c *conversation) end(r *request, raw []byte) {
	c.drop(r)
	st := r.stream
	st.open--
	c.clients.event(st, raw, st.open == 0 && len(st.asking) == 0)
	c.askIfLast(st)
}

// suspend removes a request whose client must first answer questions. When the client has
// answered, the request is delivered again.
func (c *conversation) suspend(r *request, a asking) {
	c.drop(r)
	r.stream.open--
	r.stream.asking = append(r.stream.asking, a)
	c.askIfLast(r.stream)
}

func (c *conversation) askIfLast(st *stream) {
	if st.open == 0 && len(st.asking) > 0 {
		st.ask()
	}
}

// endAll ends all requests with the error f, and forgets all questions.
func (c *conversation) endAll(f *fault) {
	for _, r := range c.inOrder() {
		c.end(r, f.unanswered(r))
	}
	clear(c.questions)
	clear(c.asked)
}

// leave ends the open requests of a departing session with the error f.
func (c *conversation) leave(s *session, f *fault) {
	for _, r := range c.inOrder() {
		if r.stream.session == s {
			c.tellCancelled(r, "the session has ended")
			c.end(r, f.unanswered(r))
		}
	}
	for _, q := range c.questions {
		if q.session == s {
			c.pipe.send(0, wire.ErrorResponse(q.id, &wire.Error{Code: wire.CodeInternal, Message: "the session that was asked has ended"}))
			c.forget(q)
		}
	}
}

// drop forgets a request and its questions, and sends the client nothing.
func (c *conversation) drop(r *request) {
	delete(c.requests, r.number)
	delete(c.renamed, r.sent)
	delete(c.byID, clientID{r.stream.session, idKey(r.id)})
	if r.passed != nil {
		c.passed.Remove(r.passed)
	}
	if r.timer != nil {
		r.timer.Stop()
	}
	for _, q := range c.questions {
		if q.call == r {
			c.remove(q)
		}
	}
	c.noteIdle()
	if r.passed != nil {
		c.clock.over()
	}
}

func (c *conversation) forget(q *question) {
	c.remove(q)
	c.noteIdle()
}

func (c *conversation) remove(q *question) {
	delete(c.questions, q.visible)
	if q.call != nil {
		c.clock.closed(q)
	}
	if key := idKey(q.id); c.asked[key] == q {
		delete(c.asked, key)
	}
}

func (c *conversation) noteIdle() {
	if c.idle() {
		c.clock.quiet()
	}
}

// inOrder lists the requests in the order in which they came.
func (c *conversation) inOrder() []*request {
	return slices.SortedFunc(maps.Values(c.requests), func(a, b *request) int { return cmp.Compare(a.order, b.order) })
}

// questionsInOrder lists the open questions in the order in which the process asked them.
func (c *conversation) questionsInOrder() []*question {
	return slices.SortedFunc(maps.Values(c.questions), func(a, b *question) int { return cmp.Compare(a.order, b.order) })
}

// openQuestions lists the ids of the questions to a session's client, in the order in
// which the process asked them.
func (c *conversation) openQuestions(of *session) (ids []string) {
	for _, q := range c.questionsInOrder() {
		if q.session == nil || q.session == of {
			ids = append(ids, q.visible)
		}
	}
	return ids
}

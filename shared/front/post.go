package front

import (
	"bytes"
	"net/http"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// post takes what a client sends (MCP 2025-11-25, basic/transports, "Sending
// Messages to the Server").
func (x *exchange) post() error {
	if err := x.accept(wire.MediaJSON, wire.MediaSSE); err != nil {
		return err
	}
	if err := x.contentType(); err != nil {
		return err
	}
	body, err := x.body()
	if err != nil {
		return err
	}
	msgs, batch, err := wire.ParseBody(body)
	x.method, x.id = subject(msgs)
	x.asks = !batch && x.id != nil
	if err != nil {
		return err
	}
	if x.isModernPost(msgs) {
		return x.modern(msgs, batch)
	}
	initialize, err := x.checkMessages(msgs, batch)
	if err != nil {
		return err
	}
	if initialize {
		return x.initialize(msgs[0])
	}
	if err := x.sessionID(); err != nil {
		return err
	}
	call, err := x.opts.Host.Accept(x.ctx(), x.caller, x.session, msgs, batch)
	if err != nil {
		return err
	}
	if call == nil {
		x.empty(http.StatusAccepted)
		return nil
	}
	return x.respond(call, batch, x.until(x.hold(call)))
}

// initialize opens a session. Its client does not know the session yet, so it has
// nothing to come back to: the response is held as long as it can be.
func (x *exchange) initialize(m wire.Message) error {
	s, call, err := x.opts.Host.Initialize(x.ctx(), x.caller, "", m)
	if err != nil {
		return err
	}
	x.session = s.ID
	x.w.Header().Set(wire.HeaderSessionID, string(s.ID))
	return x.respond(call, false, x.until(x.opts.Limit))
}

// hold is how long the response to a request may be kept open. Only clients that
// know polling are sent away before it is there, and only for what is in a log.
func (x *exchange) hold(call *host.Call) time.Duration {
	if call.Stored() && x.polls() {
		return call.Hold()
	}
	return x.opts.Limit
}

// polls says that the client comes back for what is left of a response. For the
// common stream every client does.
func (x *exchange) polls() bool {
	return x.r.Method == http.MethodGet || x.r.Header.Get(wire.HeaderProtocolVersion) == wire.V20251125
}

// respond commits late: to plain JSON if there is nothing but responses within
// the window, else to an event stream. Until then an error has a status; the
// request has been accepted only when there is none.
func (x *exchange) respond(call *host.Call, batch bool, end time.Time) error {
	events, gap, err := x.gather(call, batch, earlier(time.Now().Add(x.opts.JSONWindow), end))
	if err != nil {
		return err
	}
	if call.Done() && !gap && (batch && responsesOnly(events) || !batch && len(events) == 1) {
		x.answer(events, batch)
		return nil
	}
	out := x.commit()
	out.prime(before(call, events), call.Retry())
	x.follow(out, call, events, gap, end)
	return nil
}

// gather returns what comes within the window: of a single request the first
// events, of a batch as many as are responses. An error is one before anything
// came; a later one comes again with the next read.
func (x *exchange) gather(call *host.Call, batch bool, window time.Time) (events []session.Event, gap bool, err error) {
	for {
		more, err := call.Next(x.ctx(), window)
		if err != nil && len(events) == 0 {
			return nil, false, err
		}
		gap = gap || len(more) > 0 && call.Gap()
		events = append(events, more...)
		_, closed := call.Close() // then it is no JSON: there is more to come back for
		if err != nil || len(more) == 0 || call.Done() || closed || !batch || !responsesOnly(events) {
			return events, gap, nil
		}
	}
}

func responsesOnly(events []session.Event) bool {
	return !slices.ContainsFunc(events, func(e session.Event) bool { return !isResponse(e.Raw) })
}

// answer sends plain JSON. An initialize that failed has opened no session.
func (x *exchange) answer(events []session.Event, batch bool) {
	raws := make([][]byte, len(events))
	for i, e := range events {
		raws[i] = e.Raw
	}
	body := raws[0]
	if batch {
		body = slices.Concat([]byte{'['}, bytes.Join(raws, []byte{','}), []byte{']'})
	}
	if !batch && wire.Lookup(body, "error") != nil {
		x.w.Header().Del(wire.HeaderSessionID)
	}
	x.json(http.StatusOK, body)
}

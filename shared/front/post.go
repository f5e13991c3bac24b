package front

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// post takes a client's messages (MCP 2025-11-25, basic/transports, "Sending Messages
// to the Server").
func (s streamable) post() error {
	msgs, batch, err := s.read()
	if err != nil {
		return err
	}
	return s.take(msgs, batch)
}

// read does the checks of a POST that come before its messages are known, and reads these.
func (s streamable) read() (msgs []wire.Message, batch bool, err error) {
	if err := s.x.accept(); err != nil {
		return nil, false, err
	}
	if err := s.x.contentType(); err != nil {
		return nil, false, err
	}
	body, err := s.x.body()
	if err != nil {
		return nil, false, err
	}
	msgs, batch, err = wire.ParseBody(body)
	s.x.method, s.x.id = subject(msgs)
	s.x.msgs, s.x.batch = msgs, batch
	s.x.r = s.x.called.reads(s.x.r, msgs)
	if err == nil && msgs[0].Method == wire.MethodListen && !takesStreams(s.x) {
		err = notAcceptable(wire.MediaJSON, wire.MediaSSE)
	}
	return msgs, batch, err
}

// take serves messages.
func (s streamable) take(msgs []wire.Message, batch bool) error {
	if err := s.x.permit(msgs); err != nil {
		return err
	}
	if anyModern(msgs, s.x.r.Header.Get(wire.HeaderProtocolVersion)) {
		return serveModern(s.x, msgs, batch)
	}
	initialize, err := s.checkMessages(msgs, batch)
	if err != nil {
		return err
	}
	if initialize {
		return s.initialize(msgs[0])
	}
	if err := s.sessionID(); err != nil {
		return err
	}
	if s.x.one != nil {
		s.x.session = host.MemberID(s.x.session, s.x.caller.Server.Name)
	}
	call, err := s.x.opts.Host.Accept(s.x.ctx(), s.x.caller, s.x.session, msgs, batch)
	if s.x.one != nil && errors.Is(err, session.NotFound) {
		if err = s.x.one.join(s.x.caller); err == nil {
			call, err = s.x.opts.Host.Accept(s.x.ctx(), s.x.caller, s.x.session, msgs, batch)
		}
	}
	if err != nil {
		return err
	}
	if call == nil {
		s.x.empty(http.StatusAccepted)
		return nil
	}
	s.x.called.begins(call)
	return s.respond(call, batch, s.x.until(s.hold(call)))
}

// initialize opens a session. The client does not know the session's id yet, so it could
// not come back for the answer. initialize therefore holds the response as long as
// possible.
func (s streamable) initialize(m wire.Message) error {
	opened, call, err := s.x.opts.Host.Initialize(s.x.ctx(), s.x.caller, "", m)
	if err != nil {
		return err
	}
	s.x.session = opened.ID
	s.x.w.Header().Set(wire.HeaderSessionID, string(opened.ID))
	return s.respond(call, false, s.x.until(s.x.opts.Limit))
}

// window returns how long a response may take and still be plain JSON. If initialize fails
// within it, the client gets no session id, so its window is longer. It ends with the
// silence after which an event stream gets a comment.
func (s streamable) window() time.Duration {
	if slices.ContainsFunc(s.x.msgs, isInitialize) {
		return max(s.x.opts.JSONWindow, s.x.opts.KeepAlive)
	}
	return s.x.opts.JSONWindow
}

// hold returns how long the response with a stream may be held. If the client polls and the
// answer goes into the log, the response may end before the answer. The standalone stream
// has no answer to wait for.
func (s streamable) hold(call *host.Call) time.Duration {
	if call.Stored() && (polls(s.x) || call.Stream() == session.Standalone) {
		return call.Hold()
	}
	return s.x.opts.Limit
}

// respond answers with plain JSON if only responses come within the window, and otherwise
// with an event stream. Until then an error can still have its own status. If respond
// returns no error, the request has been accepted.
func (s streamable) respond(call *host.Call, batch bool, end time.Time) error {
	if !takesStreams(s.x) {
		return s.wait(call, batch)
	}
	events, gap, err := s.gather(call, batch, earlier(time.Now().Add(s.window()), end))
	if err != nil {
		return err
	}
	if call.Done() && !gap && (batch && responsesOnly(events) || !batch && len(events) == 1) {
		s.x.saw(events)
		s.answer(events, batch)
		return nil
	}
	out := s.x.commit()
	out.prime(before(call, events))
	s.follow(out, call, events, gap, end)
	return nil
}

// wait answers a client that takes no event stream. It holds the response until all
// responses have come. The client does not get the other messages of the server.
func (s streamable) wait(call *host.Call, batch bool) error {
	var responses []session.Event
	accepted := false
	for end := s.x.until(s.x.opts.Limit); !call.Done(); {
		events, err := call.Next(s.x.ctx(), end)
		switch {
		case err != nil && accepted && s.x.ctx().Err() == nil:
			return unanswered(err)
		case err != nil:
			return err
		case len(events) == 0 && !call.Done():
			return context.DeadlineExceeded
		}
		accepted = true
		s.x.saw(events)
		for _, e := range events {
			if len(e.Raw) > 0 && isResponse(e.Raw) {
				responses = append(responses, e)
			}
		}
	}
	if len(responses) == 0 {
		return unanswered(session.Closed)
	}
	s.answer(responses, batch)
	return nil
}

// unanswered returns the error for a request that was accepted and whose answer cannot be
// had.
func unanswered(cause error) error {
	return session.Errorf(session.Unknown, "the answer could not be read; the request may have been executed").Because(cause)
}

// gather returns the events that come within the window. For a single request these are
// the first ones. For a batch it goes on as long as all events are responses. It returns
// an error only if no event came before it; the next read returns a later error again.
func (s streamable) gather(call *host.Call, batch bool, window time.Time) (events []session.Event, gap bool, err error) {
	for {
		more, err := call.Next(s.x.ctx(), window)
		if err != nil && len(events) == 0 {
			return nil, false, err
		}
		gap = gap || len(more) > 0 && call.Gap()
		events = append(events, more...)
		_, closed := call.Close() // the server wants the client to come back for more, so this answer is not complete
		if err != nil || len(more) == 0 || call.Done() || closed || !batch || !responsesOnly(events) {
			return events, gap, nil
		}
	}
}

func responsesOnly(events []session.Event) bool {
	return !slices.ContainsFunc(events, func(e session.Event) bool { return !isResponse(e.Raw) })
}

// answer sends plain JSON. An initialize that failed has opened no session.
func (s streamable) answer(events []session.Event, batch bool) {
	raws := make([][]byte, len(events))
	for i, e := range events {
		raws[i] = e.Raw
	}
	body := raws[0]
	if batch {
		body = slices.Concat([]byte{'['}, bytes.Join(raws, []byte{','}), []byte{']'})
	}
	if !batch && wire.Lookup(body, "error") != nil {
		s.x.w.Header().Del(wire.HeaderSessionID)
	}
	s.x.json(http.StatusOK, body)
}

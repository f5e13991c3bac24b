package transport

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// postStreamable takes a client's messages (MCP 2025-11-25, basic/transports, "Sending Messages
// to the Server").
func postStreamable(x *exchange) error {
	msgs, batch, err := x.messages()
	if err != nil {
		return err
	}
	if anyModern(msgs, x.r.Header.Get(wire.HeaderProtocolVersion)) {
		return serveModern(x, msgs, batch)
	}
	initialize, err := checkMessages(x, msgs, batch)
	if err != nil {
		return err
	}
	endpoint := x.at(storage.HTTP)
	if initialize {
		// The response is held as long as possible: without the session's id, the client could not come
		// back for the answer.
		id, call, err := endpoint.Initialize(x.ctx(), "", msgs[0])
		if err != nil {
			return err
		}
		x.session = id
		x.w.Header().Set(wire.HeaderSessionID, string(id))
		return respond(x, call, false, x.until(x.opts.Limit), nil)
	}
	if err := x.sessionID(); err != nil {
		return err
	}
	id := x.session // hand makes x.session that of a group's member
	call, err := x.hand(endpoint, id, msgs, batch)
	if rpc := answerOf(err); rpc != nil && !batch && msgs[0].Kind == wire.Request {
		x.err = err
		x.called.answered(rpc)
		x.json(http.StatusOK, wire.ErrorResponse(msgs[0].ID, rpc))
		return nil
	}
	switch {
	case err != nil:
		return err
	case call == nil:
		x.empty(http.StatusAccepted)
		return nil
	}
	return respond(x, call, batch, x.until(hold(x, call)), func(question json.RawMessage) error {
		m, _ := wire.Parse(wire.ErrorResponse(question, &wire.Error{Code: wire.CodeInvalidRequest, Message: "the client takes no event stream, so it cannot be asked"}))
		to, err := endpoint.Route(x.ctx(), id, []wire.Message{m}, false)
		if err == nil {
			_, err = to.Accept(x.ctx())
		}
		return err
	})
}

// messages does the checks of a POST that come before its messages are known, and reads the
// messages.
func (x *exchange) messages() (msgs []wire.Message, batch bool, err error) {
	// MCP wants the client to take event streams, too. For a client that takes only JSON, the response is
	// held until the answer.
	if !accepts(x.r.Header.Values("Accept"), wire.MediaJSON) {
		return nil, false, notAcceptable(wire.MediaJSON, wire.MediaSSE)
	}
	if err := x.contentType(); err != nil {
		return nil, false, err
	}
	body, err := x.body()
	if err != nil {
		return nil, false, err
	}
	msgs, batch, err = wire.ParseBody(body)
	x.method, x.id = subject(msgs)
	x.msgs, x.batch = msgs, batch
	x.r = x.called.reads(x.r, msgs)
	keys := x.r.Header.Values(wire.HeaderIdempotencyKey)
	if len(keys) > 1 {
		return nil, false, refusal(http.StatusBadRequest, storage.Invalid, wire.CodeInvalidRequest, "header "+wire.HeaderIdempotencyKey+" must be sent once")
	}
	if len(keys) == 1 {
		x.r = x.r.WithContext(sessions.WithKey(x.r.Context(), keys[0]))
	}
	if err == nil && msgs[0].Method == wire.MethodListen && !takesStreams(x) {
		err = notAcceptable(wire.MediaJSON, wire.MediaSSE)
	}
	return msgs, batch, err
}

// hand gives messages to the server that they are for. The response is nil if no message
// needs one.
func (x *exchange) hand(endpoint sessions.Endpoint, id storage.ID, msgs []wire.Message, batch bool) (sessions.Response, error) {
	to, err := endpoint.Route(x.ctx(), id, msgs, batch)
	if err != nil {
		return nil, err
	}
	if to.Caller.Server.Name != x.caller.Server.Name {
		x.called.asks(to.Messages) // in a group, to.Messages name the tool without the prefix of its server
	}
	x.caller, x.session, x.msgs, x.batch = to.Caller, to.Session, to.Messages, to.Batch
	if err := x.permit(to.Messages); err != nil {
		return nil, err
	}
	call, err := to.Accept(x.ctx())
	if err == nil && call != nil {
		x.called.begins(call)
	}
	return call, err
}

// window returns how long a response may take and still be plain JSON. Only in plain JSON can the
// answer to a failed initialize leave out the session id, so initialize has a window of at least
// KeepAlive.
func window(x *exchange) time.Duration {
	if slices.ContainsFunc(x.msgs, isInitialize) {
		return max(x.opts.JSONWindow, x.opts.KeepAlive)
	}
	return x.opts.JSONWindow
}

// respond answers with plain JSON if only responses come within the window, and otherwise with an
// event stream. If respond returns an error, it has sent nothing. If it returns nil, the request
// has been accepted.
func respond(x *exchange, call sessions.Response, batch bool, end time.Time, refuse func(question json.RawMessage) error) error {
	x.called.outlives(call)
	if !takesStreams(x) {
		return wait(x, call, batch, refuse)
	}
	events, err := gather(x, call, batch, earlier(time.Now().Add(window(x)), end))
	if err != nil {
		return err
	}
	gap := slices.ContainsFunc(events, func(e sessions.Event) bool { return e.Gap })
	if call.Done() && !gap && (batch && responsesOnly(events) || !batch && len(events) == 1) {
		x.saw(events)
		answer(x, events, batch)
		return nil
	}
	out := x.commit()
	out.prime(call.Start())
	follow(x, out, call, events, end)
	return nil
}

// wait answers a client that takes no event stream, once all responses have come. The client does
// not get the other messages of the server; refuse answers the questions among them.
func wait(x *exchange, call sessions.Response, batch bool, refuse func(question json.RawMessage) error) error {
	var responses []sessions.Event
	accepted := false
	for end := x.until(x.opts.Limit); !call.Done(); {
		events, err := call.Next(x.ctx(), end)
		switch {
		case err != nil && accepted && x.ctx().Err() == nil:
			return unanswered(err)
		case err != nil:
			return err
		case len(events) == 0 && !call.Done() && !time.Now().Before(end):
			return context.DeadlineExceeded
		}
		accepted = true
		x.saw(events)
		for _, e := range events {
			switch id := wire.Lookup(e.Raw, "id"); {
			case len(e.Raw) > 0 && isResponse(e.Raw):
				responses = append(responses, e)
			case id != nil:
				if err := refuse(id); err != nil {
					return unanswered(err)
				}
			}
		}
	}
	if len(responses) == 0 {
		return unanswered(storage.Closed)
	}
	answer(x, responses, batch)
	return nil
}

// unanswered returns the error for a request that was accepted and whose answer cannot be
// had.
func unanswered(cause error) error {
	return storage.Errorf(storage.Unknown, "the answer could not be read; the request may have been executed").Because(cause)
}

// gather returns the events that come within the window: for a single request the first ones, and for
// a batch all, up to the first that is not a response. gather does not return an error that comes after
// an event; the next read does.
func gather(x *exchange, call sessions.Response, batch bool, window time.Time) (events []sessions.Event, err error) {
	for {
		more, err := call.Next(x.ctx(), window)
		if err != nil && len(events) == 0 {
			return nil, err
		}
		if events = append(events, more...); len(events) == len(more) {
			events = more // events was empty: use more itself, which nobody else uses
		}
		_, _, closed := call.Close() // true if the client is to come back for the other events
		if err != nil || len(more) == 0 || call.Done() || closed || !batch || !responsesOnly(events) {
			return events, nil
		}
	}
}

func responsesOnly(events []sessions.Event) bool {
	return !slices.ContainsFunc(events, func(e sessions.Event) bool { return !isResponse(e.Raw) })
}

// answer sends events as plain JSON. An initialize that failed has opened no session, so its answer
// has no session id.
func answer(x *exchange, events []sessions.Event, batch bool) {
	raws := make([][]byte, len(events))
	for i, e := range events {
		raws[i] = e.Raw
	}
	body := joined(raws, batch)
	if !batch && wire.Lookup(body, "error") != nil {
		x.w.Header().Del(wire.HeaderSessionID)
	}
	x.json(http.StatusOK, body)
}

package front

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// httpSSE serves a request of HTTP+SSE (MCP 2024-11-05, basic/transports). One event
// stream carries all messages of the server, answers included. The client posts each of
// its messages.
//
// httpSSE holds the stream for as long as the platform allows, because clients lose
// more than the stream when it ends. Python's and Go's do not come back. TypeScript's
// comes back, but does not name its session. A client that comes back with the id of
// the last event, or with the session in the query, goes on in its session. One with
// neither gets a new session, and need not initialize it.
type httpSSE struct{ x *exchange }

// querySession is the query parameter of the session, in the URI to which clients post.
const querySession = "sessionId"

// get serves GET /<server>/sse, and GET /<server>/mcp without a session.
func (s httpSSE) get() error {
	if err := s.x.streams(); err != nil {
		return err
	}
	s.x.caller.Transport = session.SSE
	from, err := s.resumed()
	if err != nil {
		return err
	}
	if s.x.session == "" {
		opened, err := s.x.opts.Host.Open(s.x.ctx(), s.x.caller)
		if err != nil {
			return err
		}
		s.x.session = opened.ID
	}
	end := s.x.until(s.x.opts.Limit)
	call, err := s.x.opts.Host.Follow(s.x.ctx(), s.x.caller, s.x.session, from, end)
	if err != nil {
		return err
	}
	out := s.x.commit()
	out.endpoint(call.Cursor().String(), s.endpoint())
	sent := s.send(out, call, end)
	ctx, cancel := s.x.detached()
	defer cancel()
	_ = call.Report(ctx, sent) // if this fails, the next stream repeats the events of this one
	return nil
}

// resumed returns where a returning client continues: after the last event that it names,
// or else where the session that it names was read last. from is nil in the second case,
// and for a client that does not return.
func (s httpSSE) resumed() (from *session.Index, err error) {
	if last := s.x.r.Header.Get(wire.HeaderLastEventID); last != "" {
		id, err := session.ParseEventID(last)
		if err != nil {
			return nil, err
		}
		if id.Stream == session.LegacySSE && id.Nonce != "" {
			s.x.session = session.ID(id.Nonce)
			return &id.Index, nil
		}
	}
	if id := s.x.r.URL.Query().Get(querySession); id != "" {
		return nil, s.x.named(id)
	}
	return nil, nil
}

// endpoint returns the URI to which the client posts. It is a path without an origin: only
// the platform knows that, and clients refuse another one. It is an absolute path, because
// Java's clients do not resolve it against the URI of the stream.
func (s httpSSE) endpoint() string {
	path := strings.TrimSuffix(s.x.r.URL.EscapedPath(), "/")
	return prefix(s.x.r) + path[:strings.LastIndex(path, "/")+1] + "message?" + querySession + "=" + string(s.x.session)
}

// send sends events until the session has ended, another stream has taken this one's
// place, the time is over or the client has gone. It returns the last index that it
// sent.
func (s httpSSE) send(out *stream, call *host.Call, end time.Time) (sent session.Index) {
	sent = call.Cursor().Index
	for {
		if out.flush() != nil {
			return sent
		}
		sent = call.Cursor().Index
		if call.Done() || !time.Now().Before(end) {
			return sent
		}
		events, err := call.Next(s.x.ctx(), earlier(end, time.Now().Add(s.x.opts.KeepAlive)))
		if err != nil {
			if s.x.ctx().Err() == nil {
				s.x.err = err
			}
			return sent
		}
		if len(events) == 0 {
			out.comment("keep-alive")
		} else if call.Gap() {
			out.gap()
		}
		for _, e := range events {
			out.message(call.ID(e).String(), e.Raw)
		}
	}
}

// permitted hands messages on if the caller's token permits all calls in them.
func (s httpSSE) permitted(msgs []wire.Message, batch bool) (*host.Call, error) {
	if err := s.x.permit(msgs); err != nil {
		return nil, err
	}
	return s.accept(msgs, batch)
}

// post takes a client's message: POST /<server>/message?sessionId=.... The response
// says only whether the message was accepted.
func (s httpSSE) post() error {
	s.x.caller.Transport = session.SSE
	msgs, batch, err := s.read()
	if err != nil {
		return err
	}
	return s.take(msgs, batch)
}

// read does the checks of a POST that come before its messages are served.
func (s httpSSE) read() (msgs []wire.Message, batch bool, err error) {
	if err := s.x.contentType(); err != nil {
		return nil, false, err
	}
	id := s.x.r.URL.Query().Get(querySession)
	if id == "" {
		return nil, false, refusal(http.StatusBadRequest, session.Invalid, wire.CodeServer,
			"the request names no session; post to the URI that the event stream began with")
	}
	body, err := s.x.body()
	if err != nil {
		return nil, false, err
	}
	msgs, batch, err = wire.ParseBody(body)
	s.x.method, s.x.id = subject(msgs)
	s.x.r = s.x.called.reads(s.x.r, msgs)
	if err != nil {
		return nil, false, err
	}
	return msgs, batch, s.x.named(id)
}

// take serves messages.
func (s httpSSE) take(msgs []wire.Message, batch bool) error {
	if anyModern(msgs, s.x.r.Header.Get(wire.HeaderProtocolVersion)) {
		return s.refuseModern(msgs)
	}
	call, err := s.permitted(msgs, batch)
	s.x.called.begins(call)
	var forbidden *problem
	switch {
	case errors.As(err, &forbidden) && (forbidden.rpc.Code == codeForbidden || forbidden.status == http.StatusOK) && s.x.id != nil:
		if _, _, err := s.x.opts.Host.Load(s.x.ctx(), s.x.caller, s.x.session); err != nil {
			return err
		}
		s.x.err = err
		err = s.x.opts.Host.Say(s.x.ctx(), s.x.session, refusedAll(msgs, forbidden.rpc)...)
	case session.CodeOf(err) == session.Busy && s.x.id != nil:
		s.x.err = err
		err = s.x.opts.Host.Say(s.x.ctx(), s.x.session, busyAll(msgs, err, false)...)
	case err == nil && call != nil:
		err = s.awaitAccepted(call)
	}
	if err != nil {
		return err
	}
	s.accepted()
	return nil
}

func (s httpSSE) accepted() { s.x.text(http.StatusAccepted, "Accepted") }

// refuseModern refuses messages of the modern era, which has no HTTP+SSE. Its errors go
// to the stream, like all answers. Go's client asks for the modern era first, and takes a
// refused POST for a broken connection. After this answer it sends initialize.
func (s httpSSE) refuseModern(msgs []wire.Message) error {
	if _, _, err := s.x.opts.Host.Load(s.x.ctx(), s.x.caller, s.x.session); err != nil {
		return err
	}
	var answers [][]byte
	for _, m := range msgs {
		if m.Kind != wire.Request {
			continue
		}
		requested, _ := modernVersion(m, s.x.r.Header.Get(wire.HeaderProtocolVersion))
		s.x.err = unsupportedModern(requested)
		answers = append(answers, wire.ErrorResponse(m.ID, problemOf(s.x.err).rpc))
	}
	if len(answers) > 0 {
		if err := s.x.opts.Host.Say(s.x.ctx(), s.x.session, answers...); err != nil {
			return err
		}
	}
	s.accepted()
	return nil
}

// accept hands messages to the host.
func (s httpSSE) accept(msgs []wire.Message, batch bool) (*host.Call, error) {
	if isInitialize(msgs[0]) && !batch {
		_, call, err := s.x.opts.Host.Initialize(s.x.ctx(), s.x.caller, s.x.session, msgs[0])
		return call, err
	}
	return s.x.opts.Host.Accept(s.x.ctx(), s.x.caller, s.x.session, msgs, batch)
}

// awaitAccepted waits until a request has been accepted. The executor of the request puts
// the answer on the stream. If the host answered the request itself, awaitAccepted puts
// that answer on the stream.
func (s httpSSE) awaitAccepted(call *host.Call) error {
	events, err := call.Next(s.x.ctx(), time.Now())
	if err != nil || call.Stored() {
		return err
	}
	s.x.saw(events)
	for _, e := range events {
		if err := s.x.opts.Host.Say(s.x.ctx(), s.x.session, e.Raw); err != nil {
			return err
		}
	}
	return nil
}

package front

import (
	"net/http"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// get opens the standalone stream, or goes on with any stream where it was cut. See MCP
// 2025-11-25, basic/transports, "Listening for Messages from the Server" and
// "Resumability and Redelivery".
func (s streamable) get() error {
	if isModern(s.x.r.Header.Get(wire.HeaderProtocolVersion)) {
		return notAllowed(methodsModern, "this protocol version has no stream to open; use POST")
	}
	if beforeSessions(s.x.r.Header) {
		return httpSSE(s).get()
	}
	if err := s.x.streams(); err != nil {
		return err
	}
	if err := s.checkVersion(); err != nil {
		return err
	}
	if err := s.sessionID(); err != nil {
		return err
	}
	return s.follows(s.x.r.Header.Get(wire.HeaderLastEventID))
}

// follows serves a stream of the session after an event, last, or from now on if last is "".
func (s streamable) follows(last string) error {
	var from session.EventID
	if last != "" {
		var err error
		if from, err = session.ParseEventID(last); err != nil {
			return err
		}
	}
	call, err := s.listen(from, last)
	if err == nil || !passing(err) {
		return err
	}
	s.x.err = err
	at := session.EventID{Stream: from.Stream, Nonce: session.NewNonce()}
	if call != nil {
		// The client may have become the primary listener in spite of the error. Its next
		// GET must not wait for this listener to time out.
		at = call.Cursor()
	}
	at.Index = from.Index
	out := s.x.commit()
	out.leave(at, s.troubleRetry())
	_ = out.flush() // nothing follows, so it does not matter if the client has gone
	return nil
}

// beforeSessions reports whether a GET is one of HTTP+SSE. A GET of Streamable HTTP
// names a version, or a session whose events the client has seen.
func beforeSessions(h http.Header) bool {
	last := h.Get(wire.HeaderLastEventID)
	return h.Get(wire.HeaderSessionID) == "" && h.Get(wire.HeaderProtocolVersion) == "" &&
		(last == "" || strings.HasSuffix(last, "/"+string(session.LegacySSE)))
}

// listen serves a stream for as long as the response may be held. It reads the existing
// events before it sends anything, because the first event must carry the cursor to
// continue at. An error that it returns has not been answered.
func (s streamable) listen(from session.EventID, last string) (*host.Call, error) {
	call, err := s.open(last)
	if err != nil {
		return nil, err
	}
	if last != "" {
		s.x.called.begins(call)
	}
	end := s.x.until(s.hold(call))
	events, err := call.Next(s.x.ctx(), s.x.begun)
	if err != nil {
		return call, err
	}
	id := before(call, events)
	if id.Index == 0 {
		// A listener that does not get the events yet has no place in the stream except
		// the one that its client named.
		id.Index = from.Index
	}
	out := s.x.commit()
	out.prime(id)
	s.follow(out, call, events, len(events) > 0 && call.Gap(), end)
	return call, nil
}

func (s streamable) open(last string) (*host.Call, error) {
	if last == "" {
		return s.x.opts.Host.Listen(s.x.ctx(), s.x.caller, s.x.session, "")
	}
	return s.x.opts.Host.Resume(s.x.ctx(), s.x.caller, s.x.session, last)
}

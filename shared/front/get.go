package front

import (
	"net/http"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// get opens the common stream, or takes up any stream where it was cut (MCP
// 2025-11-25, basic/transports, "Listening for Messages from the Server" and
// "Resumability and Redelivery").
func (x *exchange) get() error {
	if isModern(x.r.Header.Get(wire.HeaderProtocolVersion)) {
		return notAllowed(methodsModern, "this protocol version has no stream to open; use POST")
	}
	if x.beforeSessions() {
		return x.eventStream()
	}
	if err := x.streams(); err != nil {
		return err
	}
	if err := x.version(); err != nil {
		return err
	}
	if err := x.sessionID(); err != nil {
		return err
	}
	var from session.EventID
	last := x.r.Header.Get(wire.HeaderLastEventID)
	if last != "" {
		var err error
		if from, err = session.ParseEventID(last); err != nil {
			return err
		}
	}
	call, err := x.listen(from, last)
	if err == nil || !passing(err) {
		return err
	}
	x.err = err
	at := session.EventID{Stream: from.Stream, Nonce: session.NewNonce()}
	if call != nil {
		// It may have become the primary all the same: it must not wait behind itself.
		at = call.Cursor()
	}
	at.Index = from.Index
	out := x.commit()
	out.prime(at, x.troubleRetry())
	_ = out.flush() // the last that is sent; nobody is left to tell
	return nil
}

// beforeSessions says that a GET is of HTTP+SSE: Streamable HTTP names a version,
// and a session whose events it has seen.
func (x *exchange) beforeSessions() bool {
	h := x.r.Header
	last := h.Get(wire.HeaderLastEventID)
	return h.Get(wire.HeaderSessionID) == "" && h.Get(wire.HeaderProtocolVersion) == "" &&
		(last == "" || strings.HasSuffix(last, "/"+string(session.Out)))
}

// listen serves a stream for as long as it may be held. What is there already is
// read before anything is sent: only then is it known where the stream goes on,
// which the first event has to say. An error has not been answered.
func (x *exchange) listen(from session.EventID, last string) (*host.Call, error) {
	call, err := x.call(last)
	if err != nil {
		return nil, err
	}
	end := x.until(call.Hold())
	events, err := call.Next(x.ctx(), x.begun)
	if err != nil {
		return call, err
	}
	id := before(call, events)
	if id.Index == 0 {
		// A listener that does not get the events yet has no place in the stream but
		// the one its client told.
		id.Index = from.Index
	}
	out := x.commit()
	out.prime(id, call.Retry())
	x.follow(out, call, events, len(events) > 0 && call.Gap(), end)
	return call, nil
}

func (x *exchange) call(last string) (*host.Call, error) {
	if last == "" {
		return x.opts.Host.Listen(x.ctx(), x.caller, x.session, "")
	}
	return x.opts.Host.Resume(x.ctx(), x.caller, x.session, last)
}

// end ends a session (MCP 2025-11-25, basic/transports, "Session Management").
func (x *exchange) end() error {
	if isModern(x.r.Header.Get(wire.HeaderProtocolVersion)) {
		return notAllowed(methodsModern, "this protocol version has no session to end; use POST")
	}
	if err := x.version(); err != nil {
		return err
	}
	if err := x.sessionID(); err != nil {
		return err
	}
	if err := x.opts.Host.End(x.ctx(), x.caller, x.session); err != nil {
		return err
	}
	x.empty(http.StatusNoContent)
	return nil
}

package transport

import (
	"net/http"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// getStreamable opens the standalone stream, or goes on with any stream where it was cut. See MCP
// 2025-11-25, basic/transports, "Listening for Messages from the Server" and
// "Resumability and Redelivery".
func getStreamable(x *exchange) error {
	if isModern(x.r.Header.Get(wire.HeaderProtocolVersion)) {
		return notAllowed(methodsModern, "this protocol version has no stream to open; use POST")
	}
	if beforeSessions(x.r.Header) {
		return getSSE(x)
	}
	if err := x.streams(); err != nil {
		return err
	}
	if err := checkVersion(x); err != nil {
		return err
	}
	if err := x.sessionID(); err != nil {
		return err
	}
	endpoint, last := x.at(storage.HTTP), x.r.Header.Get(wire.HeaderLastEventID)
	again := func(id string, err error) error {
		if !passing(err) {
			return err
		}
		trouble(x, x.commit(), id, err)
		return nil
	}
	call, err := endpoint.Listen(x.ctx(), x.session, last, x.until)
	if err != nil {
		return again(endpoint.Again(last), err)
	}
	defer x.stop(call, "")
	x.caller, x.session = call.Of()
	if last != "" {
		x.called.begins(call)
		x.called.said.Stream = x.called.stream
	}
	end := x.until(hold(x, call))
	// The existing events are read before anything is sent, because the first event must
	// carry the cursor to continue at.
	events, err := call.Next(x.ctx(), x.begun)
	if err != nil {
		// The client may have become the primary listener in spite of the error. Its next
		// GET must not wait for this listener to time out.
		return again(call.Start(), err)
	}
	out := x.commit()
	out.prime(call.Start())
	follow(x, out, call, events, end)
	return nil
}

// beforeSessions reports whether a GET belongs to HTTP+SSE. A GET of Streamable HTTP names a version
// or a session, or an event that did not come over HTTP+SSE.
func beforeSessions(h http.Header) bool {
	last := h.Get(wire.HeaderLastEventID)
	return h.Get(wire.HeaderSessionID) == "" && h.Get(wire.HeaderProtocolVersion) == "" &&
		(last == "" || strings.HasSuffix(last, "/"+string(storage.LegacySSE)) || strings.Contains(last, ";"))
}

// deleteStreamable ends a session (MCP 2025-11-25, basic/transports, "Session Management").
func deleteStreamable(x *exchange) error {
	if isModern(x.r.Header.Get(wire.HeaderProtocolVersion)) {
		return notAllowed(methodsModern, "this protocol version has no session to end; use POST")
	}
	if err := checkVersion(x); err != nil {
		return err
	}
	if err := x.sessionID(); err != nil {
		return err
	}
	if err := x.at(storage.HTTP).End(x.ctx(), x.session); err != nil {
		return err
	}
	x.empty(http.StatusNoContent)
	return nil
}

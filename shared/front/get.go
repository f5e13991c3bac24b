package front

import (
	"net/http"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// get opens the standalone stream, or goes on with any stream where it was cut. See MCP
// 2025-11-25, basic/transports, "Listening for Messages from the Server" and
// "Resumability and Redelivery".
func get(x *exchange) error {
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
	endpoint, last := x.at(session.HTTP), x.r.Header.Get(wire.HeaderLastEventID)
	again := func(id string, err error) error {
		if !passing(err) {
			return err
		}
		x.err = err
		out := x.commit()
		out.leave(id, troubleRetry(x))
		_ = out.flush() // nothing follows, so it does not matter if the client has gone
		return nil
	}
	call, err := endpoint.Listen(x.ctx(), x.session, last, x.until)
	if err != nil {
		return again(endpoint.Again(last), err)
	}
	ctx, cancel := x.detached()
	defer cancel()
	defer call.Stop(ctx, "")
	x.caller, x.session = call.Of()
	if last != "" {
		x.called.begins(call)
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

// beforeSessions reports whether a GET is one of HTTP+SSE. A GET of Streamable HTTP
// names a version, or a session whose events the client has seen.
func beforeSessions(h http.Header) bool {
	last := h.Get(wire.HeaderLastEventID)
	return h.Get(wire.HeaderSessionID) == "" && h.Get(wire.HeaderProtocolVersion) == "" &&
		(last == "" || strings.HasSuffix(last, "/"+string(session.LegacySSE)) || strings.Contains(last, ";"))
}

// follow sends events, and then the events that come later, until the stream has ended,
// hold has passed or the client has gone. In a silence it sends comments, so that no
// proxy closes the connection. If this function executes the request, follow holds the
// response beyond hold.
func follow(x *exchange, out *stream, call host.Resumable, events []host.Event, hold time.Time) {
	for {
		end := hold
		if call.Held() {
			end = x.until(x.opts.Limit)
		}
		out.events(events)
		x.saw(events)
		over := !time.Now().Before(end)
		cursor, retry, closed := call.Close()
		closed = closed && (polls(x) || call.Done())
		switch {
		case closed:
			// The response ends and the client polls (SEP-1699). It comes back with this
			// cursor.
			out.leave(cursor, retry)
		case over && !call.Done() && !out.polls && !out.named && call.Stream() != session.Standalone:
			out.place(call.Cursor())
		case over && !call.Done():
			out.pace(call.Retry())
		case call.Done():
			out.fill()
		}
		// A client that has gone loses nothing: it comes back with the last id it has.
		if err := out.flush(); err != nil || over || closed || call.Done() {
			return
		}
		var err error
		if events, err = call.Next(x.ctx(), earlier(end, time.Now().Add(x.opts.KeepAlive))); err != nil {
			trouble(x, out, call, err)
			return
		}
		if len(events) == 0 && time.Now().Before(end) {
			out.comment("keep-alive")
		}
	}
}

// trouble ends a stream after a failed read. If the error may pass, trouble sets a longer
// retry for the client. If not, the client gets the error at once when it comes back.
func trouble(x *exchange, out *stream, call host.Stream, err error) {
	if x.ctx().Err() != nil {
		return
	}
	x.err = err
	if passing(err) {
		out.leave(call.Cursor(), troubleRetry(x))
		_ = out.flush() // nothing follows, so it does not matter if the client has gone
	}
}

// troubleRetry is the retry that clients get while the store cannot be read.
func troubleRetry(x *exchange) time.Duration { return 10 * x.opts.Host.Limits().Pace }

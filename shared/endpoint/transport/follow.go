package transport

import (
	"net/http"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// hold returns how long the response with a stream may be held. If the client polls and the
// answer goes into the log, the response may end before the answer. The standalone stream
// has no answer to wait for.
func hold(x *exchange, call sessions.Resumable) time.Duration {
	if call.Stored() && (polls(x) || call.Stream() == storage.Standalone) {
		return call.Hold()
	}
	return x.opts.Limit
}

// follow sends events, and then the events that come later. It returns when the stream has ended,
// the client has gone, or deadline has passed. In a silence it sends comments, so that no proxy
// closes the connection. While this program itself executes the request (call.Held), the response
// may last longer than deadline.
func follow(x *exchange, out *stream, call sessions.Resumable, events []sessions.Event, deadline time.Time) {
	for {
		end := deadline
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
			// The response ends, and the client comes back with this cursor (SEP-1699).
			out.leave(cursor, retry)
		case over && !call.Done() && !out.polls && !out.named && call.Stream() != storage.Standalone:
			out.place(call.Cursor())
		case over && !call.Done():
			out.leave("", call.Retry())
		case call.Done():
			out.fill()
		}
		// A client that has gone loses nothing: it comes back with the last id it has.
		if err := out.flush(); err != nil || over || closed || call.Done() {
			return
		}
		var err error
		if events, err = call.Next(x.ctx(), earlier(end, time.Now().Add(x.opts.KeepAlive))); err != nil {
			if x.ctx().Err() == nil {
				trouble(x, out, call.Cursor(), err)
			}
			return
		}
		if len(events) == 0 && time.Now().Before(end) {
			out.comment("keep-alive")
		}
	}
}

// trouble ends a stream after a failed read. If the error may be temporary, the client comes back
// with cursor, after a longer retry than usual. The client gets any other error when it comes
// back.
func trouble(x *exchange, out *stream, cursor string, err error) {
	x.err = err
	if passing(err) {
		if !out.polls && !out.named && x.r.Method == http.MethodPost {
			out.place(cursor)
		} else {
			out.leave(cursor, 10*sessions.Pace)
		}
		_ = out.flush() // nothing follows, so it does not matter if the client has gone
	}
}

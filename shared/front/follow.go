package front

import (
	"time"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// follow sends events, and then the events that come later, until the stream has ended,
// hold has passed or the client has gone. In a silence it sends comments, so that no
// proxy closes the connection. If this function executes the request, follow holds the
// response beyond hold.
func (s streamable) follow(out *stream, call *host.Call, events []session.Event, gap bool, hold time.Time) {
	for {
		end := hold
		if call.Held() {
			end = s.x.until(s.x.opts.Limit)
		}
		if gap {
			out.gap()
		}
		out.events(call, events)
		s.x.saw(events)
		over := !time.Now().Before(end)
		retry, closed := call.Close()
		closed = closed && (polls(s.x) || call.Done())
		switch {
		case closed:
			// The response ends and the client polls (SEP-1699). It comes back with this
			// cursor.
			out.leave(call.Cursor(), retry)
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
		if events, err = call.Next(s.x.ctx(), earlier(end, time.Now().Add(s.x.opts.KeepAlive))); err != nil {
			s.trouble(out, call, err)
			return
		}
		if gap = len(events) > 0 && call.Gap(); len(events) == 0 && time.Now().Before(end) {
			out.comment("keep-alive")
		}
	}
}

// trouble ends a stream after a failed read. If the error may pass, trouble sets a longer
// retry for the client. If not, the client gets the error at once when it comes back.
func (s streamable) trouble(out *stream, call *host.Call, err error) {
	if s.x.ctx().Err() != nil {
		return
	}
	s.x.err = err
	if passing(err) {
		out.leave(call.Cursor(), s.troubleRetry())
		_ = out.flush() // nothing follows, so it does not matter if the client has gone
	}
}

// troubleRetry is the retry that clients get while the store cannot be read.
func (s streamable) troubleRetry() time.Duration { return 10 * s.x.opts.Host.Limits().Pace }

// before returns the cursor in front of events. A client that gets only this cursor
// comes back to the first of them.
func before(call *host.Call, events []session.Event) session.EventID {
	id := call.Cursor()
	if len(events) > 0 {
		id.Index = events[0].Index - 1
	}
	return id
}

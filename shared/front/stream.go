package front

import (
	"errors"
	"net/http"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// troubleRetry is what a client is told to wait when nothing can be had now.
func (x *exchange) troubleRetry() time.Duration { return 10 * x.opts.Host.Limits().Pace }

// stream writes server-sent events. What is added to it is sent by flush, in one
// piece.
type stream struct {
	w     http.ResponseWriter
	buf   []byte
	retry time.Duration // the last one that was sent
}

// commit begins an event stream. From here on the only way to say that something
// is wrong is to let the client come back.
func (x *exchange) commit() *stream {
	h := x.w.Header()
	h.Set("Content-Type", wire.MediaSSE)
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	x.empty(http.StatusOK)
	return &stream{w: x.w}
}

// prime adds the event that has to open every stream: a cursor and nothing else.
func (s *stream) prime(id session.EventID, retry time.Duration) {
	s.retry = retry
	s.buf = wire.AppendSSE(s.buf, wire.SSE{ID: id.String(), Retry: retry, HasData: true})
}

// pace adds an event that has a retry only: the client keeps the id it has.
func (s *stream) pace(retry time.Duration) {
	s.buf = wire.AppendSSE(s.buf, wire.SSE{Retry: retry, HasData: true})
}

// events adds events of a call. The pace a client was told changes with the first
// event after a silence.
func (s *stream) events(call *host.Call, events []session.Event) {
	for _, e := range events {
		if len(e.Raw) == 0 {
			continue // it only closes the stream, which follow does
		}
		frame := wire.SSE{ID: call.ID(e).String(), Data: e.Raw}
		if retry := call.Retry(); retry != s.retry {
			frame.Retry, s.retry = retry, retry
		}
		s.buf = wire.AppendSSE(s.buf, frame)
	}
}

// gap adds a message that tells of lost events (I4). It has no id of its own: the
// event before it is the cursor.
func (s *stream) gap() {
	s.buf = wire.AppendSSE(s.buf, wire.SSE{Data: wire.NewNotification(wire.NotifyMessage,
		[]byte(`{"level":"warning","logger":"dormouse","data":"events were lost here: they are older or more than what is kept"}`))})
}

func (s *stream) comment(text string) { s.buf = wire.AppendComment(s.buf, text) }

func (s *stream) flush() error {
	_, err := s.w.Write(s.buf)
	s.buf = s.buf[:0]
	return errors.Join(err, http.NewResponseController(s.w).Flush())
}

// follow sends events, and then what comes, until the stream has ended, its time
// is over or the client has gone; comments keep the way open meanwhile.
//
// A response to what is executed in this function is held for longer than its time.
func (x *exchange) follow(out *stream, call *host.Call, events []session.Event, gap bool, hold time.Time) {
	for {
		end := hold
		if call.Held() {
			end = x.until(x.opts.Limit)
		}
		if gap {
			out.gap()
		}
		out.events(call, events)
		over := !time.Now().Before(end)
		retry, closed := call.Close()
		closed = closed && x.polls()
		switch {
		case closed:
			// The client is sent away (SEP-1699): it goes on where it is now.
			out.prime(call.Cursor(), retry)
		case over && !call.Done():
			// Once more, because TypeScript clients keep one pace for all streams, and
			// another one may have set it meanwhile.
			out.pace(call.Retry())
		}
		// A client that has gone loses nothing: it comes back with what it has.
		if err := out.flush(); err != nil || over || closed || call.Done() {
			return
		}
		var err error
		if events, err = call.Next(x.ctx(), earlier(end, time.Now().Add(x.opts.KeepAlive))); err != nil {
			x.trouble(out, call, err)
			return
		}
		if gap = len(events) > 0 && call.Gap(); len(events) == 0 && time.Now().Before(end) {
			out.comment("keep-alive")
		}
	}
}

// trouble ends a stream that cannot be read on. Only an error that may pass is
// worth a longer wait; any other one the client shall meet at once.
func (x *exchange) trouble(out *stream, call *host.Call, err error) {
	if x.ctx().Err() != nil {
		return
	}
	x.err = err
	if passing(err) {
		out.prime(call.Cursor(), x.troubleRetry())
		_ = out.flush() // as in get
	}
}

// before is the cursor in front of events: where a client goes on that gets
// nothing but this.
func before(call *host.Call, events []session.Event) session.EventID {
	id := call.Cursor()
	if len(events) > 0 {
		id.Index = events[0].Index - 1
	}
	return id
}

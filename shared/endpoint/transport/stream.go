package transport

import (
	"bytes"
	"errors"
	"net/http"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// stream writes server-sent events. Its methods add to ahead and buf, which flush sends in this
// order.
type stream struct {
	w     http.ResponseWriter
	ahead [][]byte // what flush sends before buf
	buf   []byte
	polls bool // the client takes priming events, and the field retry
	begun bool // something was sent
	named bool // an event with an id was added
}

// keptBuffer is the largest buffer that a stream keeps after a flush, in bytes. A longer message is
// not copied into the buffer.
const keptBuffer = 64 << 10

// prime adds the event that opens a stream, if the client polls (P1 in the package comment).
func (s *stream) prime(id string) {
	if s.polls {
		s.place(id)
	}
}

// leave adds the event that ends a response early, which has a retry (P6 in the package comment), and an
// id for the client to come back with. If id is "", the client keeps the id that it has.
func (s *stream) leave(id string, retry time.Duration) {
	if s.polls {
		s.buf = wire.AppendSSE(s.buf, wire.SSE{ID: id, Retry: retry, HasData: true})
	} else {
		s.fill()
	}
}

// place adds an event with a cursor and nothing else. An older client without an id could not come back
// for its answer. Most of these clients can read such an event.
func (s *stream) place(id string) {
	s.buf = wire.AppendSSE(s.buf, wire.SSE{ID: id, HasData: true})
}

// fill adds a comment to a stream that would otherwise end with an empty body, at which clients
// fail.
func (s *stream) fill() {
	if !s.begun && len(s.buf) == 0 {
		s.comment("nothing yet")
	}
}

// events adds events of a stream, all with the name "message": of the standalone stream, Java clients
// drop events that have no name.
func (s *stream) events(events []sessions.Event) {
	for _, e := range events {
		if e.Gap {
			s.gap()
		}
		switch {
		case len(e.Raw) > 0:
			s.named = true
			s.message(e.ID, e.Raw)
		case e.ID != "":
			s.prime(e.ID)
		} // an event with neither a message nor an id marks the end of the stream
	}
}

// gap adds a message about lost events. The message has no id, so the id of the event before it
// stays the cursor.
func (s *stream) gap() {
	s.buf = wire.AppendSSE(s.buf, wire.SSE{Name: "message", Data: wire.NewNotification(wire.NotifyMessage,
		[]byte(`{"level":"warning","logger":"dormouse","data":"events were lost here: they are older or more than what is kept"}`))})
}

// endpoint adds the event that opens an event stream of HTTP+SSE: the URI to which the client posts.
// Its id names the session and a position in the stream.
func (s *stream) endpoint(id, uri string) {
	s.buf = wire.AppendSSE(s.buf, wire.SSE{Name: "endpoint", ID: id, Data: []byte(uri)})
}

// message adds an event with a message. If id is "", a client cannot come back to it.
func (s *stream) message(id string, raw []byte) {
	e := wire.SSE{Name: "message", ID: id, Data: raw}
	if len(raw) <= keptBuffer || bytes.IndexByte(raw, '\r') >= 0 || bytes.IndexByte(raw, '\n') >= 0 {
		s.buf = wire.AppendSSE(s.buf, e)
		return
	}
	const end = "\n\n"
	e.Data, e.HasData = nil, true
	head := wire.AppendSSE(s.buf, e)
	s.ahead, s.buf = append(s.ahead, head[:len(head)-len(end)], raw), []byte(end)
}

func (s *stream) comment(text string) { s.buf = wire.AppendComment(s.buf, text) }

func (s *stream) flush() error {
	var err error
	for _, part := range append(s.ahead, s.buf) {
		if err == nil {
			_, err = s.w.Write(part)
		}
	}
	s.ahead = nil
	s.begun = s.begun || len(s.buf) > 0
	if s.buf = s.buf[:0]; cap(s.buf) > keptBuffer {
		s.buf = nil
	}
	return errors.Join(err, http.NewResponseController(s.w).Flush())
}

package aggregate

import (
	"context"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// part is one of the streams that are merged. If member is "", it is the stream of the session
// with the group itself.
type part struct {
	member string
	stream sessions.Stream
	place  string        // event id of the last event that the client has got
	index  storage.Index // index of the event whose id is in place
	retry  time.Duration
	ended  bool // the session with this member has ended; only in a [following]
}

// heard is what one read of a part returned.
type heard struct {
	of     *part
	events []sessions.Event
	cursor string // event id of the position after the events
	err    error
	done   bool // nothing more is read from the part
}

// merged reads several streams side by side.
type merged struct {
	g     *Group
	id    storage.ID // the client's session with the group
	parts []*part
	end   time.Time     // when the response must end
	look  time.Duration // how often Next of a part must return, to notice that a newer response reads the same stream; 0: never

	ctx     context.Context // for the goroutines that read
	stop    context.CancelFunc
	reading sync.WaitGroup
	heard   chan heard
}

func (g *Group) merge(ctx context.Context, id storage.ID) *merged {
	m := &merged{g: g, id: id, heard: make(chan heard)}
	m.ctx, m.stop = context.WithCancel(ctx)
	return m
}

// read starts a goroutine that reads a part until the response must end.
func (m *merged) read(p *part) {
	m.reading.Go(func() {
		for done := false; !done; {
			until := m.end
			if soon := time.Now().Add(m.look); m.look > 0 && soon.Before(until) {
				until = soon
			}
			events, err := p.stream.Next(m.ctx, until)
			done = err != nil || p.stream.Done() || !time.Now().Before(m.end)
			if s, ok := p.stream.(sessions.Resumable); ok && !done {
				_, _, done = s.Close()
			}
			if len(events) == 0 && !done {
				continue
			}
			select {
			case m.heard <- heard{p, events, p.stream.Cursor(), err, done}:
			case <-m.ctx.Done():
				return
			}
		}
	})
}

// wait returns what is read next from any part. some is false if nothing was read by the deadline.
func (m *merged) wait(ctx context.Context, deadline time.Time) (h heard, some bool, err error) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case h = <-m.heard:
		return h, true, h.err
	case <-ctx.Done():
		return h, false, ctx.Err()
	case <-timer.C:
		return h, false, nil
	}
}

// pass returns the events of h as the client gets them. It moves h.of past each event, and then takes the
// event id from the function id, which names the client's position in all streams.
func (m *merged) pass(h heard, id func() string) (events []sessions.Event) {
	gap := false
	for i, e := range h.events {
		gap = gap || e.Gap
		h.of.index = e.Index
		if len(e.Raw) == 0 {
			continue
		}
		if h.of.place = (storage.EventID{Index: e.Index}).String(); i == len(h.events)-1 {
			h.of.place = h.cursor
		}
		raw := e.Raw
		if h.of.member != "" {
			raw = m.g.view(h.of.member).Message(raw)
		} else if joinedOf(raw) != "" {
			continue // the message is not for the client
		}
		events = append(events, sessions.Event{Event: storage.Event{Raw: raw}, ID: id(), Gap: gap})
		gap = false
	}
	h.of.place = h.cursor
	return events
}

// Of returns the session of the group.
func (m *merged) Of() (sessions.Caller, storage.ID) { return m.g.As, m.id }

func (m *merged) halt() {
	m.stop()
	m.reading.Wait()
}

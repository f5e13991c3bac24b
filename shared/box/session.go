package box

import (
	"encoding/json"
	"slices"
	"sync"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// maxUntold limits the bytes of events that wait for the sink. Above it the box stops
// reading the processes of the session.
const maxUntold = 4 << 20

// session is the state of one client session. The box's lock guards it. The box forgets
// it when none of its processes and events is left.
type session struct {
	box       *Box
	id        string
	principal string
	group     *group
	departed  bool // it has left its group

	// From the newest delivery that had them.
	ticket, level string
	subscriptions []string
	init          json.RawMessage

	over bool // it has ended together with its own process: its files go too

	untold []told
	bytes  int       // of untold
	room   sync.Cond // signaled when bytes has shrunk
	// telling says that a goroutine passes untold to the sink. It runs only while there
	// is something to tell.
	telling bool
}

// told is one pending call of the sink.
type told struct {
	call   func(Sink)
	stream string // the request stream of an event, else ""
	bytes  int
}

// note keeps the session state that a delivery carries.
func (s *session) note(d Delivery, msgs []wire.Message) {
	s.ticket, s.level, s.subscriptions = d.Ticket, d.Level, d.Subscriptions
	if len(d.Init) > 0 {
		s.init = d.Init
		return
	}
	for _, m := range msgs {
		if m.Kind == wire.Request && m.Method == wire.MethodInitialize {
			s.init = m.Params
		}
	}
}

// depart takes the session out of a group of several. Its requests end with f; the
// process goes on for the other sessions.
func (s *session) depart(f *fault) {
	g := s.group
	if s.departed || !slices.Contains(g.members, s) {
		return
	}
	level, subscriptions := g.level(), g.subscriptions()
	for _, p := range g.live {
		p.conv.leave(s, f)
	}
	g.members = slices.DeleteFunc(g.members, func(m *session) bool { return m == s })
	if n := len(g.members); n > 0 && g.speaker == s {
		g.speaker = g.members[n-1]
	}
	s.departed = true
	s.room.Broadcast()
	g.settle(level, subscriptions)
	s.tidy()
}

// tidy forgets the session if nothing is left of it.
func (s *session) tidy() {
	if (len(s.group.live) == 0 || s.departed) && !s.telling && s.box.sessions[s.id] == s {
		delete(s.box.sessions, s.id)
	}
}

// # Deliveries

// request begins one request of a delivery: it ends the request at once, or passes it to
// p.
func (s *session) request(p *process, st *stream, m wire.Message) {
	for _, other := range s.group.live {
		// A process that is being stopped may still answer to the id.
		if other != p && other.conv.byID[clientID{s, idKey(m.ID)}] != nil {
			s.refuse(st, m.ID, &wire.Error{Code: wire.CodeInvalidRequest, Message: "duplicate request id"})
			return
		}
	}
	if s.box.server.Scope.wide() && !s.group.common(s, &m) {
		st.open--
		s.event(st, wire.ResultResponse(m.ID, nil), st.open == 0)
		return
	}
	p.request(st, m)
}

// refuse ends a request with an error before a process gets it.
func (s *session) refuse(st *stream, id json.RawMessage, e *wire.Error) {
	st.open--
	s.event(st, wire.ErrorResponse(id, e), st.open == 0)
}

// refuseAll ends all requests of a delivery with f before a process gets them.
func (s *session) refuseAll(st *stream, requests []wire.Message, f *fault) {
	for _, m := range requests {
		st.open--
		s.event(st, f.response(m.ID), st.open == 0)
	}
}

func (s *session) notification(p *process, m wire.Message) {
	switch {
	case m.Method == wire.NotifyInitialized:
		// The box sends its own.
	case m.Method == wire.NotifyCancelled:
		for _, l := range s.group.live {
			if l.conv.cancel(s, m) != nil {
				return
			}
		}
	case p != nil && m.Method == wire.NotifyProgress && !p.conv.mayReport(s, m):
		s.box.counts.Unknown++
	case p != nil:
		p.send(0, p.conv.notice(m).Line())
	}
}

// # To the sink

// event tells the sink of a message; a nil stream is the common one.
func (s *session) event(to *stream, raw []byte, final bool) {
	e := Output{Session: s.id, Ticket: s.ticket, Raw: raw, Final: final}
	if to != nil && to.id != "" {
		e.Stream, e.Ticket = to.id, to.ticket
	}
	s.tell(told{call: func(k Sink) { k.Output(e) }, stream: e.Stream, bytes: len(raw)})
}

func (s *session) tell(t told) {
	s.untold = append(s.untold, t)
	s.bytes += t.bytes
	if !s.telling {
		s.telling = true
		s.box.enter()
		go s.tellAll()
	}
}

// tellAll passes everything to the sink, one call after the other, without holding the
// lock.
func (s *session) tellAll() {
	b := s.box
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(s.untold) > 0 {
		t := s.untold[0]
		s.untold[0] = told{}
		s.untold = s.untold[1:]
		b.mu.Unlock()
		t.call(b.sink)
		b.mu.Lock()
		s.bytes -= t.bytes
		s.room.Broadcast()
	}
	s.untold = nil
	s.telling = false
	s.tidy()
	b.leave()
}

// closeStream cancels the requests of a stream and drops its pending events.
func (s *session) closeStream(id string) {
	for _, p := range s.group.live {
		for _, r := range p.conv.inOrder() {
			if r.stream.session == s && r.stream.id == id {
				p.conv.tellCancelled(r, "the stream of the request was closed")
				p.conv.drop(r)
			}
		}
	}
	s.untold = slices.DeleteFunc(s.untold, func(t told) bool {
		if t.stream != id {
			return false
		}
		s.bytes -= t.bytes
		return true
	})
	s.room.Broadcast()
}

// inflight lists the deliveries with requests in flight.
func (s *session) inflight() []Inflight {
	var all []Inflight
	seen := map[*stream]bool{}
	for _, p := range s.group.live {
		for _, r := range p.conv.inOrder() {
			if st := r.stream; st.session == s && !seen[st] {
				seen[st] = true
				all = append(all, Inflight{ID: st.id, Session: s.id, Ticket: st.ticket, Since: st.came})
			}
		}
	}
	return all
}

// hasStream reports whether a delivery of this id has requests in flight.
func (s *session) hasStream(id string) bool {
	return slices.ContainsFunc(s.inflight(), func(i Inflight) bool { return i.ID == id })
}

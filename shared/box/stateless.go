package box

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// stateless speaks to a process of version 2026-07-28. Requests of a client of that version, and
// their responses, pass unchanged. To requests of other clients the box adds what the client sent
// in initialize. A process of this version sends the client no requests. If it needs input, it says
// so in its response, and the delivery ends as a [frame.Suspension].
type stateless struct {
	p        *process
	discover json.RawMessage // the result of server/discover
	changes  int64           // number of the box's request for notifications of changes, 0 for none
}

func (s *stateless) hello(id int64) string {
	s.p.write(bridge.Probe(strconv.AppendInt(nil, id, 10)))
	return wire.MethodDiscover
}

func (s *stateless) greeted(m wire.Message) firstAnswer {
	if m.Error != nil || !bridge.ReadProbe(m) {
		return firstAnswer{refused: notStateless(s.p.box.server)}
	}
	s.discover = m.Result
	version, _ := wire.String(wire.Lookup(s.p.group.initParams(), "protocolVersion"))
	return firstAnswer{version: version}
}

func notStateless(s Server) *fault {
	return s.fault(PhaseMCPInit, "does not answer server/discover as a server of version %s", wire.V20260728)
}

func (s *stateless) initialized(of *session) json.RawMessage {
	return of.client().Initialize(s.discover)
}

func (s *stateless) params(method string) json.RawMessage {
	return s.p.group.speaker.client().Params(method, nil, "", false)
}

// begin asks for the notifications of changes that the sessions want.
func (s *stateless) begin() {
	p := s.p
	if s.changes != 0 {
		delete(p.own, s.changes)
		p.notes.sent = true
		p.write(wire.NewNotification(wire.NotifyCancelled, fmt.Appendf(nil, `{"requestId":%d}`, s.changes)))
	}
	n := p.conv.own()
	raw := p.group.speaker.client().Listen(strconv.AppendInt(nil, n, 10), s.discover, p.group.subscriptions())
	if s.changes = 0; raw == nil {
		return
	}
	s.changes, p.own[n] = n, &ownRequest{method: wire.MethodListen}
	p.write(raw)
}

func (s *stateless) tellSettings(_ string, subscriptions []string) {
	// Only subscriptions matter here: each request carries the log level of its session.
	if !slices.Equal(s.p.group.subscriptions(), subscriptions) {
		s.begin()
	}
}

func (s *stateless) outgoing(r *request, line []byte) []byte {
	if r != nil && r.modern {
		return line
	}
	m, err := wire.Parse(line)
	switch {
	case err == nil && m.Kind == wire.Notification && m.Method == wire.NotifyRootsChanged:
		return nil // the process asks for the roots anew in each call
	case err != nil || r == nil:
		return line
	}
	switch m.Method {
	case wire.MethodSubscribe, wire.MethodUnsubscribe:
		s.begin()
		s.p.conv.end(r, wire.ResultResponse(r.id, nil))
		return nil
	case wire.MethodDiscover, wire.MethodListen: // methods of a version that the client does not speak
		s.p.conv.end(r, wire.ErrorResponse(r.id, &wire.Error{Code: wire.CodeMethodNotFound, Message: "this method is not served in the version that the client speaks"}))
		return nil
	case wire.MethodSetLevel, wire.MethodPing:
		s.p.conv.end(r, wire.ResultResponse(r.id, nil)) // the process gets neither: each request carries the log level
		return nil
	}
	r.line = line
	of := r.stream.session
	return withParams(m, of.client().Params(m.Method, m.Params, of.level, r.stream.round > 0 || r.retries > 0))
}

func (s *stateless) withdraw(*request) bool { return false }

func (s *stateless) prove() bool {
	n := s.p.conv.own()
	s.p.own[n] = &ownRequest{method: wire.MethodDiscover}
	s.p.write(bridge.Probe(strconv.AppendInt(nil, n, 10)))
	return true
}

func (s *stateless) response(r *request, m wire.Message) {
	switch {
	case r.modern:
	case m.Error != nil:
		m.Error = bridge.PlainFault(r.method, m.Error)
	case bridge.Wants(m.Result):
		s.needs(r, m.Result)
		return
	default:
		m.Result = bridge.Plain(r.method, m.Result)
	}
	s.p.conv.response(m)
}

func (s *stateless) notification(m wire.Message) (wire.Message, bool) {
	raw := bridge.PlainNotification(m)
	if raw == nil {
		return m, false
	}
	m, err := wire.Parse(raw)
	return m, err == nil
}

// How often a process may ask to get a request again, and how long the box waits before it sends it.
const (
	maxRetries = 10
	firstRetry = 50 * time.Millisecond
	lastRetry  = 2 * time.Second
)

// needs handles the result input_required, in which the process asks for the client's input to a
// request. needs suspends the request and asks the client. If the result contains no question,
// needs sends the request again.
func (s *stateless) needs(r *request, result json.RawMessage) {
	inputs, state, fault := bridge.ReadInputs(result)
	if fault == nil && len(inputs) == 0 {
		s.retry(r, state)
		return
	}
	var a asking
	if fault == nil {
		st := r.stream
		a.questions, a.requests, fault = st.session.client().Ask(st.id, st.round+1, st.questions(), len(st.asking), inputs)
	}
	if fault != nil {
		s.p.conv.end(r, wire.ErrorResponse(r.id, fault))
		return
	}
	a.raw = bridge.Retry(r.original(), state)
	a.within = s.p.box.server.AnswerTimeout
	s.p.conv.suspend(r, a)
}

// original returns a request with the id and the progress token of the client.
func (r *request) original() []byte {
	raw, _ := wire.Replace(r.line, r.id, "id")
	if r.token != nil {
		raw, _ = wire.Replace(raw, r.token, "params", "_meta", wire.MetaProgressToken)
	}
	return raw
}

// retry sends a request again after a short delay, at most maxRetries times.
func (s *stateless) retry(r *request, state json.RawMessage) {
	p := s.p
	if r.retries++; r.retries > maxRetries {
		f := p.box.server.fault(phaseOf(r), "wants %s to be sent again and again; it was given up after %d times", r.method, maxRetries)
		p.conv.end(r, p.fill(f).response(r.id))
		return
	}
	line := bridge.Retry(r.line, state)
	p.box.server.Guard.After(min(firstRetry<<(r.retries-1), lastRetry), func() {
		p.box.mu.Lock()
		defer p.box.mu.Unlock()
		if p.conv.requests[r.number] == r && p.state != gone && !p.send(r.number, line) {
			p.conv.end(r, p.queueFull().response(r.id))
		}
	})
}

package box

import (
	"encoding/json"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// sessionful speaks to a process in the versions that have initialize.
type sessionful struct {
	p      *process
	result json.RawMessage // of initialize, as clients see it
	tasks  *legacyTasks    // nil for a process without tasks of 2025-11-25
}

func (s *sessionful) hello(id int64) string {
	s.p.hello.introduce(id)
	return wire.MethodInitialize
}

func (s *sessionful) greeted(m wire.Message) {
	p := s.p
	switch {
	case m.Error != nil:
		e := refusal(m.Error, p.box.hide)
		f := p.box.server.fault(PhaseMCPInit, "refused initialize: %s (%d)", e.Message, e.Code)
		f.data.ServerError = e
		p.hello.replace(true, f)
	case m.Result[0] != '{':
		p.fail(p.box.server.fault(PhaseMCPInit, "answered initialize with a result that is no object"))
	default:
		s.introduced(m.Result)
		if p.hello.refused != nil || p.hello.probe != probeNone {
			p.box.era = bridge.LegacyOnly
		}
		p.hello.done()
	}
}

// introduced takes the result of initialize. It hides the tasks in it from clients.
func (s *sessionful) introduced(result json.RawMessage) {
	var calls bool
	if s.result, calls = bridge.WithoutLegacyTasks(result); calls {
		s.tasks = &legacyTasks{p: s.p, needed: map[string]bool{}}
	}
}

func (s *sessionful) initialized(*session) json.RawMessage { return s.result }

func (s *sessionful) begin() {
	s.p.write(wire.NewNotification(wire.NotifyInitialized, nil))
	if level := s.p.g.level(); level != "" {
		s.set(wire.MethodSetLevel, map[string]string{"level": level})
	}
	for _, uri := range s.p.g.subscriptions() {
		s.set(wire.MethodSubscribe, map[string]string{"uri": uri})
	}
}

// set sends a request of the box itself and ignores the answer: the client had its
// answer from an earlier process.
func (s *sessionful) set(method string, params map[string]string) {
	raw, err := json.Marshal(params)
	if err != nil {
		return // strings always encode
	}
	s.p.ask(method, raw, nil)
}

func (s *sessionful) outgoing(r *request, line []byte) []byte {
	if r == nil {
		return line
	}
	if r.modern {
		if m, err := wire.Parse(line); err == nil {
			line = withParams(m, bridge.Strip(m.Method, m.Params))
		}
	}
	if s.tasks == nil {
		return line
	}
	return s.tasks.outgoing(r, line)
}

func (s *sessionful) withdraw(r *request) bool { return s.tasks != nil && s.tasks.cancel(r) }

func (s *sessionful) response(r *request, m wire.Message) {
	if s.tasks != nil {
		if s.tasks.response(r, m) {
			return
		}
		m = s.tasks.listed(r, m)
	}
	s.p.conv.response(m)
}

func (s *sessionful) notification(m wire.Message) (wire.Message, bool) {
	return m, s.tasks == nil || !s.tasks.notification(m)
}

func (s *sessionful) settle(level string, subscriptions []string) {
	g := s.p.g
	if now := g.level(); now != level && now != "" {
		s.set(wire.MethodSetLevel, map[string]string{"level": now})
	}
	now := g.subscriptions()
	for _, uri := range now {
		if !slices.Contains(subscriptions, uri) {
			s.set(wire.MethodSubscribe, map[string]string{"uri": uri})
		}
	}
	for _, uri := range subscriptions {
		if !slices.Contains(now, uri) {
			s.set(wire.MethodUnsubscribe, map[string]string{"uri": uri})
		}
	}
}

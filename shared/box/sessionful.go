package box

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// sessionful speaks to a process in the MCP versions that have initialize.
type sessionful struct {
	p       *process
	version string          // the protocol version that the box asked for
	result  json.RawMessage // the result of initialize, without the capability of tasks
	tasks   *legacyTasks    // nil if the process has no tasks of 2025-11-25
}

func (s *sessionful) hello(id int64) string {
	number := strconv.AppendInt(nil, id, 10)
	params := s.p.group.initParams()
	// The client may offer 2026-07-28, which has no initialize, so the box offers an earlier
	// version.
	offered, _ := wire.String(wire.Lookup(params, "protocolVersion"))
	if s.version = wire.Negotiate(offered); s.version != offered {
		params, _ = wire.Replace(params, wire.AppendString(nil, s.version), "protocolVersion")
	}
	// The client's progress token could be the number of another request, so the box
	// sends its own token.
	params, _ = wire.Replace(params, number, "_meta", wire.MetaProgressToken)
	if bridge.SaysModern(params) {
		params = bridge.Strip(wire.MethodInitialize, params)
	}
	s.p.write(wire.Compact(wire.NewRequest(number, wire.MethodInitialize, params)))
	return wire.MethodInitialize
}

func (s *sessionful) greeted(m wire.Message) firstAnswer {
	server := s.p.box.server
	switch {
	case m.Error != nil:
		e := refusal(m.Error, s.p.box.hide)
		f := server.fault(PhaseMCPInit, "refused initialize: %s (%d)", e.Message, e.Code)
		f.data.ServerError = e
		return firstAnswer{refused: f}
	case m.Result[0] != '{':
		return firstAnswer{failed: server.fault(PhaseMCPInit, "answered initialize with a result that is no object")}
	}
	s.introduced(m.Result)
	return firstAnswer{version: s.version}
}

// introduced stores the result of initialize, without the capability of tasks.
func (s *sessionful) introduced(result json.RawMessage) {
	var calls bool
	if s.result, calls = bridge.WithoutLegacyTasks(result); calls {
		s.tasks = &legacyTasks{p: s.p, needed: map[string]bool{}}
	}
}

func (s *sessionful) initialized(of *session) json.RawMessage {
	return of.client().Initialized(s.result)
}

func (s *sessionful) params(string) json.RawMessage { return nil }

func (s *sessionful) begin() {
	s.p.notes.sent = true
	s.p.write(wire.NewNotification(wire.NotifyInitialized, nil))
	s.tellSettings("", nil)
}

// set sends the box's own request for a setting.
func (s *sessionful) set(method string, params map[string]string) {
	raw, err := json.Marshal(params)
	if err != nil {
		return // a map of strings always marshals
	}
	s.p.ask(method, raw, nil)
}

func (s *sessionful) outgoing(r *request, line []byte) []byte {
	if r == nil || r.modern {
		if m, err := wire.Parse(line); err == nil && bridge.SaysModern(m.Params) {
			line = withParams(m, bridge.Strip(m.Method, m.Params))
		}
	}
	if r == nil || s.tasks == nil {
		return line
	}
	return s.tasks.outgoing(r, line)
}

func (s *sessionful) withdraw(r *request) bool { return s.tasks != nil && s.tasks.cancel(r) }

// prove asks for a ping and for a list, because some servers answer no ping.
func (s *sessionful) prove() bool {
	for _, list := range []struct{ capability, method string }{
		{"tools", wire.MethodToolsList}, {"prompts", wire.MethodPromptsList}, {"resources", wire.MethodResourcesList},
	} {
		if wire.Lookup(s.result, "capabilities", list.capability) != nil {
			s.p.ask(wire.MethodPing, nil, nil)
			s.p.ask(list.method, nil, nil)
			return true
		}
	}
	return false
}

func (s *sessionful) response(r *request, m wire.Message) {
	if s.tasks != nil {
		if s.tasks.response(r, m) {
			return
		}
		if r.method == wire.MethodToolsList && m.Error == nil {
			s.tasks.learn(m.Result)
			m.Result = bridge.WithoutLegacyNeed(m.Result) // clients do not see that a tool needs a task
		}
	}
	s.p.conv.response(m)
}

func (s *sessionful) notification(m wire.Message) (wire.Message, bool) {
	return m, s.tasks == nil || !s.tasks.notification(m)
}

func (s *sessionful) tellSettings(level string, subscriptions []string) {
	a := s.p.group
	if now := a.level(); now != level && now != "" {
		s.set(wire.MethodSetLevel, map[string]string{"level": now})
	}
	now := a.subscriptions()
	for _, uri := range now {
		if !slices.Contains(subscriptions, uri) && !s.p.holds(wire.MethodSubscribe, uri) {
			s.set(wire.MethodSubscribe, map[string]string{"uri": uri})
		}
	}
	for _, uri := range subscriptions {
		if !slices.Contains(now, uri) && !s.p.holds(wire.MethodUnsubscribe, uri) {
			s.set(wire.MethodUnsubscribe, map[string]string{"uri": uri})
		}
	}
}

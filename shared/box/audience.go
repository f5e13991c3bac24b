package box

import (
	"encoding/json"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// maxMembers limits how many sessions share a process, because some clients never end their
// sessions.
const maxMembers = 1024

// awaitRoom blocks until each session has at most maxUntold bytes of output that the sink has not
// taken.
func (g *group) awaitRoom() {
	g.box.mu.Lock()
	defer g.box.mu.Unlock()
	for {
		i := slices.IndexFunc(g.members, func(s *session) bool { return s.bytes > maxUntold })
		if i < 0 {
			return
		}
		g.members[i].room.Wait()
	}
}

// level returns the most verbose log level that one of the sessions has set, "" if none has.
func (g *group) level() string {
	level := ""
	for _, s := range g.members {
		if v := verbosity(s.level); v >= 0 && (level == "" || v < verbosity(level)) {
			level = s.level
		}
	}
	return level
}

// subscriptions returns the URIs that the sessions have subscribed to, each once.
func (g *group) subscriptions() []string {
	var all []string
	seen := map[string]bool{}
	for _, s := range g.members {
		for _, uri := range s.subscriptions {
			if !seen[uri] {
				seen[uri] = true
				all = append(all, uri)
			}
		}
	}
	return all
}

// everything is the capabilities that the box declares to a process of several sessions: those of
// a client that supports all features.
const everything = `{"roots":{"listChanged":true},"sampling":{"context":{},"tools":{}},"elicitation":{"form":{},"url":{}}}`

// initParams returns the params of initialize for the process.
func (g *group) initParams() json.RawMessage {
	params := initParams(g.speaker.init)
	if !g.box.server.Scope.wide() {
		return params
	}
	version := wire.Lookup(params, "protocolVersion")
	return json.RawMessage(`{"protocolVersion":` + string(version) + `,"capabilities":` + everything + `,"clientInfo":{"name":"dormouse","version":"1"}}`)
}

// event passes a message of the process to the stream st. If st is nil, the message goes to the
// standalone stream of each session that wants it.
func (g *group) event(st *stream, raw []byte, final bool) {
	switch {
	case st != nil:
		st.event(raw, final)
	case g.box.server.Scope.wide():
		g.tellAll(raw)
	default:
		g.speaker.common(raw)
	}
}

// direct returns the session whose client gets m, a request of the process. That is the session of
// owner, the newest call in flight. If owner is nil, it is the newest session whose client can
// answer. The result is nil if the process has one session only.
//
// direct refuses m if no such client can answer. A client of 2026-07-28 can answer only as long as it
// waits for a call. direct also refuses m if mixed is true, because calls of several principals are
// then in flight: one user's client must not get the question of another user.
func (g *group) direct(owner *request, mixed bool, m wire.Message) (*session, *wire.Error) {
	switch wide := g.box.server.Scope.wide(); {
	case mixed:
		return nil, &wire.Error{Code: wire.CodeInternal, Message: "calls of several clients are in flight, and nothing shows which of them this request belongs to"}
	case !wide && (owner != nil || !bridge.SaysModern(g.speaker.init)):
		return nil, nil
	case owner != nil && owner.stream.session.can(m):
		return owner.stream.session, nil
	case owner == nil:
		for _, s := range slices.Backward(g.members) {
			if s.can(m) && !bridge.SaysModern(s.init) {
				return s, nil
			}
		}
	}
	return nil, &wire.Error{Code: wire.CodeMethodNotFound, Message: "no client that this belongs to can answer " + m.Method}
}

// tellAll passes a notification that belongs to no call to every session that wants it.
func (g *group) tellAll(raw []byte) {
	m, err := wire.Parse(raw)
	for _, s := range g.members {
		if err != nil || s.wants(m) {
			s.common(raw)
		}
	}
}

// common adapts m, a session's request, to a process of several sessions: a request for a log level
// asks for the most verbose one of all sessions. common returns false if m ends a subscription that
// a session still has.
func (g *group) common(s *session, m *wire.Message) (pass bool) {
	switch m.Method {
	case wire.MethodSetLevel:
		if verbosity(s.level) >= 0 {
			m.Params, _ = wire.Replace(m.Params, json.RawMessage(`"`+g.level()+`"`), "level")
		}
	case wire.MethodUnsubscribe:
		uri, _ := wire.String(wire.Lookup(m.Params, "uri"))
		return !slices.Contains(g.subscriptions(), uri)
	}
	return true
}

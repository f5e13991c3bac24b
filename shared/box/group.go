package box

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Scope says which sessions share a process.
type Scope string

// The scopes. The zero value is ScopeSession.
const (
	ScopeSession   Scope = "session"   // each session has its own process
	ScopePrincipal Scope = "principal" // all sessions of a principal share one
	ScopeShared    Scope = "shared"    // all sessions of the box share one
)

// wide reports whether several sessions may share a process.
func (s Scope) wide() bool { return s == ScopePrincipal || s == ScopeShared }

// Name returns the name of a session's process: the session's own id if it has the
// process to itself, else "shared" or "principal-" and the principal. A session whose
// principal is not known shares its process only in ScopeShared.
func (s Scope) Name(session, principal string) string {
	switch {
	case s == ScopeShared:
		return "shared"
	case s == ScopePrincipal && principal != "":
		return "principal-" + principal
	default:
		return session
	}
}

// maxMembers limits the sessions that hear the common messages of a process. Without it,
// sessions that were never ended would hear them for ever.
const maxMembers = 1024

// group is the sessions that share a process, with that process and those that are being
// stopped. The box's lock guards it. The box forgets the group and its members with the
// last process. The next delivery of a session makes it a member again.
type group struct {
	box *Box
	id  string // names its processes

	current *process   // gets new messages, nil for none
	live    []*process // current, and those that are being stopped
	members []*session // the one heard last comes last
	speaker *session   // hears the process reports; the member heard last
}

// join makes a session the member heard last.
func (g *group) join(s *session) {
	s.group, s.departed, g.speaker = g, false, s
	known := slices.Contains(g.members, s)
	g.members = append(slices.DeleteFunc(g.members, func(m *session) bool { return m == s }), s)
	if !known && len(g.members) > maxMembers {
		if i := slices.IndexFunc(g.members, func(m *session) bool { return m != s && len(m.inflight()) == 0 }); i >= 0 {
			g.members[i].depart(nil)
		}
	}
}

// start makes a process. It runs when the earlier processes of the group are gone, and
// also room, whose place it takes (nil for none).
func (g *group) start(room *process) *process {
	p := newProcess(g)
	if room != nil {
		p.prepare.before = append(p.prepare.before, room.over)
	}
	for _, old := range g.live {
		p.prepare.before = append(p.prepare.before, old.over)
	}
	g.current = p
	g.live = append(g.live, p)
	g.box.enter()
	go p.run()
	return p
}

// left removes a process that is gone.
func (g *group) left(p *process) {
	g.detach(p)
	g.live = slices.DeleteFunc(g.live, func(l *process) bool { return l == p })
	g.tidy()
	g.box.leave()
}

// detach makes the next message start another process.
func (g *group) detach(p *process) {
	if g.current == p {
		g.current = nil
	}
}

// tidy forgets the group if nothing is left of it.
func (g *group) tidy() {
	if len(g.live) > 0 || g.box.groups[g.id] != g {
		return
	}
	delete(g.box.groups, g.id)
	for _, s := range g.members {
		if s.over {
			g.box.remove(s.id)
		}
		s.tidy()
	}
}

// stop ends all processes of the group.
func (g *group) stop(f *fault) {
	for _, p := range g.live {
		p.stop(f)
	}
}

// busy reports whether the group keeps the box from being idle.
func (g *group) busy() bool {
	return slices.ContainsFunc(g.live, func(p *process) bool {
		// Another runner may wake the box as soon as it sleeps, and must find the saved
		// workspace.
		return !p.greeted && g.current == p || !p.conv.idle() || p.keeping.workspace != ""
	})
}

// awaitRoom returns when no session of the group has more than maxUntold bytes waiting
// for the sink.
func (g *group) awaitRoom() {
	g.box.mu.Lock()
	defer g.box.mu.Unlock()
	for s := g.filled(); s != nil; s = g.filled() {
		s.room.Wait()
	}
}

func (g *group) filled() *session {
	for _, s := range g.members {
		if s.bytes > maxUntold {
			return s
		}
	}
	return nil
}

// # What the sessions have in common

// verbosity returns 0 for the most verbose log level, then 1 and so on. It returns -1
// for a string that is no level of MCP.
func verbosity(level string) int {
	return slices.Index([]string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}, level)
}

// level returns the most verbose level that a session has set, "" if none has.
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

// everything is the capabilities of a client that supports all features. A process of
// several sessions gets these. The box refuses the process's request if the session's
// own client does not support it.
const everything = `{"roots":{"listChanged":true},"sampling":{"context":{},"tools":{}},"elicitation":{"form":{},"url":{}}}`

// initParams returns the params of initialize for a process of the group. A process of
// several sessions does not learn the name of the first client.
func (g *group) initParams() json.RawMessage {
	params := initParams(g.speaker.init)
	if !g.box.server.Scope.wide() {
		return params
	}
	version := wire.Lookup(params, "protocolVersion")
	return json.RawMessage(`{"protocolVersion":` + string(version) + `,"capabilities":` + everything + `,"clientInfo":{"name":"dormouse","version":"1"}}`)
}

// can reports whether the session's client has said that it answers m.
func (s *session) can(m wire.Message) bool {
	has := func(path ...string) bool {
		v := wire.Lookup(s.init, append([]string{"capabilities"}, path...)...)
		return v != nil && string(v) != "null"
	}
	switch m.Method {
	case wire.MethodRootsList:
		return has("roots")
	case wire.MethodCreateMessage:
		return has("sampling") && (wire.Lookup(m.Params, "tools") == nil || has("sampling", "tools"))
	case wire.MethodElicit:
		mode, _ := wire.String(wire.Lookup(m.Params, "mode"))
		return has("elicitation") && (mode != "url" || has("elicitation", "url"))
	default:
		return true
	}
}

// # To clients

// event passes a message to the session of its stream. Without a stream it goes to all
// sessions of the process.
func (g *group) event(to *stream, raw []byte, final bool) {
	switch {
	case to != nil:
		to.session.event(to, raw, final)
	case g.box.server.Scope.wide():
		g.tellAll(raw)
	default:
		g.speaker.event(nil, raw, final)
	}
}

// suspend suspends a delivery and asks its client.
func (g *group) suspend(st *stream) { st.session.ask(st) }

// # From a process of several sessions

// direct returns the session whose client gets a request of the process: the client
// whose call is in flight, or without a call the newest session that can answer. It
// refuses the request while calls of several principals are in flight: the process does
// not say which call it asks for, and one client must not read a question for another.
func (g *group) direct(owner *request, mixed bool, m wire.Message) (*session, *wire.Error) {
	switch {
	case mixed:
		return nil, &wire.Error{Code: wire.CodeInternal, Message: "calls of several clients are in flight, and it cannot be told whose this request belongs to"}
	case owner != nil && owner.stream.session.can(m):
		return owner.stream.session, nil
	case owner == nil:
		for _, s := range slices.Backward(g.members) {
			if s.can(m) {
				return s, nil
			}
		}
	}
	return nil, &wire.Error{Code: wire.CodeMethodNotFound, Message: "no client that this belongs to can answer " + m.Method}
}

// tellAll passes a notification outside of calls to every session that wants it.
func (g *group) tellAll(raw []byte) {
	m, err := wire.Parse(raw)
	for _, s := range g.members {
		if err != nil || s.wants(m) {
			s.event(nil, raw, false)
		}
	}
}

// wants reports whether a session that shares its process is to get m.
func (s *session) wants(m wire.Message) bool {
	switch m.Method {
	case wire.NotifyMessage:
		level, _ := wire.String(wire.Lookup(m.Params, "level"))
		at, from := verbosity(level), verbosity(s.level)
		return at < 0 || at >= from // everything, if the session has set no level
	case wire.NotifyResourceUpdated:
		uri, _ := wire.String(wire.Lookup(m.Params, "uri"))
		return slices.ContainsFunc(s.subscriptions, func(to string) bool {
			return uri == to || strings.HasPrefix(uri, strings.TrimSuffix(to, "/")+"/")
		})
	default:
		return true
	}
}

// # To a process of several sessions

// common adapts a request with which one session would change a setting for all
// sessions. It reports whether the process is to get the request at all.
func (g *group) common(s *session, m *wire.Message) (forProcess bool) {
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

// settle tells a ready process the settings that changed because a session came or went.
func (g *group) settle(level string, subscriptions []string) {
	p := g.current
	if p == nil || !p.greeted {
		return // the handshake will tell it
	}
	p.proto.settle(level, subscriptions)
}

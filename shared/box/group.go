package box

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Scope says which sessions have one process between them.
type Scope string

// The scopes. The zero value is ScopeSession.
const (
	ScopeSession   Scope = "session"   // each has its own
	ScopePrincipal Scope = "principal" // all of one principal
	ScopeShared    Scope = "shared"    // all of the box
)

// wide says that a process may be of several sessions.
func (s Scope) wide() bool { return s == ScopePrincipal || s == ScopeShared }

// Name is what the process of a session is called, which is the session if it shares it
// with nobody. A session whose principal is not known shares nothing.
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

// maxMembers bounds the sessions that hear what a process says to all. Those that
// were never ended would else be told for ever.
const maxMembers = 1024

// group is the sessions that have one process between them, and that process with
// those that are being stopped. The box's lock guards it. It is forgotten with its
// last process, and then knows no session any more: each is known again by its next
// delivery.
type group struct {
	box *Box
	id  string // names its processes

	current *process   // takes new messages, nil for none
	live    []*process // that one, and those that are being stopped
	members []*session // the one that was heard last is the last
	speaker *session   // is told how the processes are; that one, or was
}

// join takes a session into its group, as the one that was heard last.
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

// start makes a process that runs as soon as those before it are gone, and the one
// whose room it has, which may be nil.
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

// left takes a process away that is gone.
func (g *group) left(p *process) {
	g.detach(p)
	g.live = slices.DeleteFunc(g.live, func(l *process) bool { return l == p })
	g.tidy()
	g.box.leave()
}

// detach lets no new message reach the process: the next one starts another.
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

// busy reports whether something is under way that an idle box has not.
func (g *group) busy() bool {
	return slices.ContainsFunc(g.live, func(p *process) bool {
		// A box that is asleep may be woken at once, by a runner that wants to find
		// what this one has kept.
		return !p.greeted && g.current == p || !p.conv.idle() || p.keeping.workspace != ""
	})
}

// awaitRoom returns when the sink has taken most of what was said.
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

// verbosity is 0 for the most verbose level of the log, then 1 and so on, and -1 for
// what is no level of MCP.
func verbosity(level string) int {
	return slices.Index([]string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}, level)
}

// level is the most verbose one that a session has set, "" if none has.
func (g *group) level() string {
	level := ""
	for _, s := range g.members {
		if v := verbosity(s.level); v >= 0 && (level == "" || v < verbosity(level)) {
			level = s.level
		}
	}
	return level
}

// subscriptions are what the sessions have subscribed to, each once.
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

// everything is what a client can that all others can do a part of. A process of
// several sessions is told so, and what a session's own client cannot is refused
// when the process asks it.
const everything = `{"roots":{"listChanged":true},"sampling":{"context":{},"tools":{}},"elicitation":{"form":{},"url":{}}}`

// initParams are the params of initialize for a process of the group. One of
// several sessions is not told who the first of them is.
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

// event tells a session of a message: that of the stream, and for the common stream,
// which is nil, all that have the process.
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

// suspend tells a delivery's client what is needed of it.
func (g *group) suspend(st *stream) { st.session.ask(st) }

// # From a process of several sessions

// direct says whom the process asks something: the client whose call is in flight;
// with none, of those that can answer the one that was heard last. It is refused
// when the calls of several principals are, for the process does not say for which
// it asks, and one must not read what is meant for another.
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

// tellAll tells every session a notification that belongs to no call, but for those
// that have not asked for it.
func (g *group) tellAll(raw []byte) {
	m, err := wire.Parse(raw)
	for _, s := range g.members {
		if err != nil || s.wants(m) {
			s.event(nil, raw, false)
		}
	}
}

// wants reports whether a session that shares its process is to be told m.
func (s *session) wants(m wire.Message) bool {
	switch m.Method {
	case wire.NotifyMessage:
		level, _ := wire.String(wire.Lookup(m.Params, "level"))
		at, from := verbosity(level), verbosity(s.level)
		return at < 0 || at >= from // all of it, if it has set none
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

// common changes a request that would set for all what one session wants, and
// reports whether the process is to have it at all.
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

// settle tells a process that is ready what the sessions want that has changed by
// one that came or went.
func (g *group) settle(level string, subscriptions []string) {
	p := g.current
	if p == nil || !p.greeted {
		return // it is told when it is
	}
	p.proto.settle(level, subscriptions)
}

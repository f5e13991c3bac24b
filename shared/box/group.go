package box

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// group is the sessions that share a process, with that process and earlier ones that are being
// stopped. [Box].mu guards it. The box forgets the group and its members when their last process
// has ended.
type group struct {
	box     *Box
	id      string                    // the name of the process in logs and in files, which [Scope.Name] returns
	members []*session                // in the order of their last messages
	speaker *session                  // the member with the newest delivery; a [ProcessStatus] names it
	secrets map[string]storage.Secret // the principal's secrets, from the last delivery

	current *process   // the process that gets new messages, nil for none
	live    []*process // the current process, and those that are being stopped
	ended   bool       // the box has forgotten the group
	isAnew  bool       // the current process is started for a session whose previous process has ended
	untold  *stream    // where tellAnew will tell the client that the process has lost its memory; nil for nowhere
}

// # Sessions of a group

// join makes s the newest member of the group, and the speaker. If the group then
// has too many members, the oldest one without requests in flight departs.
func (g *group) join(s *session) {
	s.departed, g.speaker = false, s
	known := slices.Contains(g.members, s)
	g.members = append(slices.DeleteFunc(g.members, func(m *session) bool { return m == s }), s)
	if !known && len(g.members) > maxMembers {
		if i := slices.IndexFunc(g.members, func(m *session) bool { return m != s && len(inflight(g.live, m)) == 0 }); i >= 0 {
			g.depart(g.members[i], nil)
		}
	}
}

// anew records that the process starts for a session whose previous process has ended. If the log
// level of the session or of a request includes notices, tellAnew later sends the client one.
func (g *group) anew(st *stream, msgs []wire.Message) {
	g.untold, g.isAnew = nil, true
	for _, m := range requestsOf(msgs) {
		level, _ := wire.String(wire.Lookup(m.Params, "_meta", wire.MetaLogLevel))
		if level = cmp.Or(level, st.session.level); level != "" && verbosity(level) <= verbosity("notice") {
			g.untold = st
		}
	}
}

// logAnew logs that a session got a new process, without the memory of its previous one.
func (g *group) logAnew() {
	if g.isAnew {
		g.box.log.Info("process started anew in a living session: what the one before had in memory is gone",
			"server", g.box.server.Name, "session_id", g.speaker.id, "restarted", true)
	}
	g.isAnew = false
}

// tellAnew sends the log message that anew has prepared, once the process is ready.
func (g *group) tellAnew() {
	if st := g.untold; st != nil && st.open > 0 {
		params, _ := json.Marshal(map[string]string{"level": "notice", "logger": "dormouse", "data": g.box.server.Name + " was started anew: what it had in memory is gone"})
		st.event(wire.NewNotification(wire.NotifyMessage, params), false)
	}
	g.untold = nil
}

// depart removes s from a group of several sessions. The requests of s end with the error f.
func (g *group) depart(s *session, f *fault) {
	if !slices.Contains(g.members, s) {
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
	g.tellSettings(level, subscriptions)
	s.tidy()
}

// tellSettings sends a ready process the settings that changed because a session joined or left.
// The arguments are the previous settings.
func (g *group) tellSettings(level string, subscriptions []string) {
	p := g.current
	if p == nil || !p.greeted {
		return // the handshake will tell the process its settings
	}
	p.proto.tellSettings(level, subscriptions)
}

// tidy forgets the group if it has no process left.
func (g *group) tidy() {
	if len(g.live) > 0 || g.ended {
		return
	}
	g.ended = true
	delete(g.box.groups, g.id)
	for _, s := range g.members {
		if s.over {
			g.box.remove(s.id)
		}
		s.departed = true
		s.tidy()
	}
}

// # Processes of a group

// start makes a process. The process is started when the earlier processes of the group have
// ended. The argument ending, if not nil, is another process that must have ended too, because the
// limit of processes is reached.
func (g *group) start(ending *process) *process {
	h := g.next()
	g.begin(h, ending)
	return h.p
}

// next makes a process and returns the handshake with it, in the protocol that the server seems to
// speak.
func (g *group) next() *handshake {
	isStateless, how := speaks(g)
	return newHandshake(newProcess(g), isStateless, how)
}

// begin starts the process of a handshake, once the earlier processes of the group have ended. The
// argument ending, if not nil, is another process that must have ended too.
func (g *group) begin(h *handshake, ending *process) {
	r := &processRun{p: h.p, hello: h}
	if ending != nil {
		r.before = append(r.before, ending.over)
	}
	for _, old := range g.live {
		r.before = append(r.before, old.over)
	}
	g.current = h.p
	g.live = append(g.live, h.p)
	g.box.enter()
	g.box.server.Guard.Go(r.run)
}

// draw draws a request number that no process of the group has used, because one process may take
// over the open requests of another.
func (g *group) draw() int64 {
	for {
		n := g.box.draw()
		if !slices.ContainsFunc(g.live, func(p *process) bool { return p.conv.knows(n) }) {
			return n
		}
	}
}

// left removes a process that has ended.
func (g *group) left(p *process) {
	g.detach(p)
	g.live = slices.DeleteFunc(g.live, func(l *process) bool { return l == p })
	g.tidy()
	g.box.leave()
}

// detach makes the next message of the group start another process, if p is the current one.
func (g *group) detach(p *process) {
	if g.current == p {
		g.current = nil
	}
}

func (g *group) stop(f *fault) {
	for _, p := range g.live {
		p.stop(f)
	}
}

// busy reports whether the group keeps the box from being idle.
func (g *group) busy() bool {
	return slices.ContainsFunc(g.live, func(p *process) bool {
		// A workspace that is not saved yet keeps the box awake. Another runner may wake
		// the box as soon as it sleeps, and must then find the saved workspace.
		return !p.greeted && g.current == p && !p.nap.asleep() || !p.conv.idle() || p.keeping.workspace != ""
	})
}

// # Deliveries

// request handles one request of a delivery: it answers the request at once or passes it to p.
func (g *group) request(p *process, st *stream, m wire.Message) {
	s := st.session
	for _, other := range g.live {
		// A process that is being stopped may still answer a request with this id.
		if other != p && other.conv.byID[clientID{s, idKey(m.ID)}] != nil {
			st.answer(wire.ErrorResponse(m.ID, &wire.Error{Code: wire.CodeInvalidRequest, Message: "duplicate request id"}))
			return
		}
	}
	if g.box.server.Scope.wide() && !g.common(s, &m) {
		st.answer(wire.ResultResponse(m.ID, nil))
		return
	}
	p.request(st, m)
}

// notification handles a notification of a session's client. The argument p is nil if no process
// runs.
func (g *group) notification(p *process, s *session, m wire.Message) {
	switch {
	case m.Method == wire.NotifyInitialized:
		// Ignored, because the box sends this notification itself.
	case m.Method == wire.NotifyCancelled:
		for _, l := range g.live {
			if l.conv.cancel(s, m) != nil {
				return
			}
		}
	case p != nil && m.Method == wire.NotifyProgress && !p.conv.mayReport(s, m):
		// Ignored, because this client was not asked the question that it reports on.
	case p != nil:
		p.send(0, p.conv.notice(m).Line())
	}
}

// inflight returns the streams of a session that have requests in flight in one of the processes.
func inflight(processes []*process, s *session) []*stream {
	var all []*stream
	for _, p := range processes {
		for _, r := range p.conv.inOrder() {
			if st := r.stream; st.session == s && !slices.Contains(all, st) {
				all = append(all, st)
			}
		}
	}
	return all
}

package box

import (
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

// Halt stops processes; their sessions stay.
//
// Calls that are still in flight after h.Within end with an error of phase box_unavailable, which
// gives h.By to the client. If h.Alone is true and all calls of a process wait for answers of
// clients, they end at once. If the session shares its process, the process goes on, and only the
// calls of that session end.
func (b *Box) Halt(h frame.Halt) {
	b.mu.Lock()
	defer b.mu.Unlock()
	timeout, why := h.Within(), b.interrupted("it was stopped by "+h.By)
	drain := func(g *group) {
		for _, p := range g.live {
			p.nap.discard = p.nap.discard || !h.Keep
			within := timeout
			if h.Alone && p.conv.waits() {
				within = 0
			}
			p.drain(why, within)
		}
	}
	if h.Session == "" {
		for _, g := range b.groups {
			drain(g)
		}
		return
	}
	s := b.sessions[string(h.Session)]
	switch {
	case s == nil:
	case !b.server.Scope.wide():
		if g := b.groupOf(s); g != nil {
			drain(g)
		}
	case timeout <= 0:
		endCalls(b.processes(s), s, why)
	default:
		b.server.Guard.After(timeout, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			endCalls(b.processes(s), s, why)
		})
	}
}

// endCalls ends the open calls of s, but not the processes.
func endCalls(processes []*process, s *session, why *fault) {
	for _, p := range processes {
		p.conv.leave(s, why)
	}
}

// drain stops the process when its calls have ended, or else after timeout. Calls that are open
// after timeout end with the error why.
func (p *process) drain(why *fault, timeout time.Duration) {
	own := *why // a copy, to which facts about this process are added
	switch {
	case p.state == gone:
	case timeout <= 0:
		p.fail(&own)
	case p.conv.idle():
		p.stop(&own)
	default:
		p.group.detach(p)
		p.clock.drain(&own, timeout)
	}
}

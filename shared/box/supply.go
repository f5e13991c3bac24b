package box

import (
	"maps"
	"time"
)

// supply has the group's process work with the secrets of a new delivery. If the process
// was started with others, supply stops it once it has no calls; the delivery then starts
// another. Until then the process goes on while its secrets are good. The box's lock is
// held.
func (g *group) supply(secrets map[string]Secret) {
	b := g.box
	for _, s := range secrets {
		b.hide.Hide(s.Value)
	}
	g.secrets = maps.Clone(secrets)
	p := g.current
	if p == nil || !p.stale() {
		return
	}
	over := b.unavailable("what its user has connected at a third party has changed")
	switch {
	case p.conv.idle() && p.greeted:
		p.followed = true
		p.stop(over)
	case p.useless(time.Now()):
		limit := b.server.ToolTimeout
		if limit < 0 {
			limit = DefaultToolTimeout
		}
		p.drain(over, limit)
	}
}

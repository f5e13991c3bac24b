package box

import (
	"maps"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// supply gives the group the secrets of a new delivery. If the current process must be replaced
// for them and is idle, supply stops it; the delivery then starts another one. A process with
// calls goes on with its old secrets. If an old secret has expired or was missing, the process
// takes no more calls and ends after the open ones. The caller must hold [Box].mu.
func (g *group) supply(secrets map[string]storage.Secret) {
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
		p.nap.discard = true // the memory of the process still has the credentials that it was started with
		p.stop(over)
	case p.useless(time.Now()):
		limit := b.server.ToolTimeout
		if limit < 0 {
			limit = DefaultToolTimeout
		}
		p.drain(over, limit)
	}
}

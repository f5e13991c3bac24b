package local

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
)

// changes records which servers had events, so that callers of wait learn of them. It numbers the
// changes; a caller passes the number that it has seen, and so misses none between two calls.
type changes struct {
	mu   sync.Mutex
	now  uint64             // number of the newest change
	last map[changed]uint64 // number of the newest change of each server of a tenant
	news chan struct{}      // closed by the next change, and then replaced
}

// changed names the tenant and the server that an event was about.
type changed struct{ tenant, server string }

// maxChanged limits the entries of changes.last. At the limit, changes removes all of them.
const maxChanged = 10_000

func newChanges() *changes {
	return &changes{now: 1, last: map[changed]uint64{}, news: make(chan struct{})}
}

// record counts e as a change of its server, if e is of a kind that operators watch. A
// [journal.Recorder] calls it.
func (c *changes) record(e journal.Event) {
	switch e.Kind {
	case journal.Call, journal.BoxWake, journal.BoxSleep, journal.BoxCrash, journal.ServerStarting, journal.ServerInstalling,
		journal.ServerReady, journal.ServerFailed, journal.ServerStopped, journal.ServerRefused, journal.ServerAsleep:
		c.add(changed{e.Tenant, e.Name})
	case journal.ServersChanged:
		var all []changed
		for _, name := range slices.Concat(e.Added, e.Changed, e.Removed) {
			all = append(all, changed{"", name})
		}
		c.add(all...)
	}
}

func (c *changes) add(all ...changed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.last) >= maxChanged {
		clear(c.last)
	}
	c.now++
	for _, what := range all {
		c.last[what] = c.now
	}
	close(c.news)
	c.news = make(chan struct{})
}

// wait implements [api.Options].Changes.
func (c *changes) wait(ctx context.Context, after uint64, may func(tenant, server string) bool) ([]string, uint64, error) {
	for {
		c.mu.Lock()
		now, news, servers := c.now, c.news, map[string]bool{}
		for what, at := range c.last {
			if at > after && may(what.tenant, what.server) {
				servers[what.server] = true
			}
		}
		c.mu.Unlock()
		switch {
		case after == 0:
			return nil, now, nil
		case len(servers) > 0:
			return slices.Sorted(maps.Keys(servers)), now, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, now, ctx.Err()
		}
	}
}

package transport

import (
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// mostConnections limits the records of connections that a Socket remembers.
const mostConnections = 1000

// connections caches records of connections, by id. A record never changes, so a cached one is
// never out of date.
type connections struct {
	mu sync.Mutex
	by map[string]storage.Connection
}

// get returns the cached record of a connection, and whether there is one that has not expired.
func (k *connections) get(id string, now time.Time) (storage.Connection, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, ok := k.by[id]
	return c, ok && c.Expires.After(now)
}

func (k *connections) put(c storage.Connection) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.by == nil || len(k.by) >= mostConnections {
		k.by = map[string]storage.Connection{}
	}
	k.by[c.ID] = c
}

func (k *connections) forget(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.by, id)
}

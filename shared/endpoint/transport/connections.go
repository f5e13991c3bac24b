package transport

import (
	"container/list"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// mostConnections limits the records of connections that a Socket remembers.
const mostConnections = 1000

// connections remembers the records of connections that were used last. A record never
// changes.
type connections struct {
	mu    sync.Mutex
	order *list.List // of storage.Connection, last used in front
	by    map[string]*list.Element
}

func newConnections() *connections {
	return &connections{order: list.New(), by: map[string]*list.Element{}}
}

func (k *connections) get(id string, now time.Time) (storage.Connection, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e, ok := k.by[id]
	if !ok {
		return storage.Connection{}, false
	}
	c := e.Value.(storage.Connection)
	if !c.Expires.After(now) {
		return storage.Connection{}, false
	}
	k.order.MoveToFront(e)
	return c, true
}

func (k *connections) put(c storage.Connection) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.by[c.ID]; ok {
		return
	}
	k.by[c.ID] = k.order.PushFront(c)
	if k.order.Len() > mostConnections {
		oldest := k.order.Back()
		k.order.Remove(oldest)
		delete(k.by, oldest.Value.(storage.Connection).ID)
	}
}

func (k *connections) forget(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e, ok := k.by[id]; ok {
		k.order.Remove(e)
		delete(k.by, id)
	}
}

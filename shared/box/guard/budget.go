package guard

import (
	"sync"
	"time"
)

// roomWithin limits how long [Budget.Room] waits.
const roomWithin = 10 * time.Second

// Budget limits how many bytes of the output of servers all boxes of a program have in memory. A nil
// Budget has no limit.
type Budget struct {
	limit int

	mu   sync.Mutex
	held int
	room chan struct{} // nil while there is room; otherwise closed when there is room again
}

// NewBudget returns a Budget with a limit in bytes.
func NewBudget(limit int) *Budget { return &Budget{limit: limit} }

// Hold adds to the bytes in memory, even above the limit. The argument may be negative.
func (b *Budget) Hold(bytes int) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held += bytes
	switch {
	case b.held > b.limit && b.room == nil:
		b.room = make(chan struct{})
	case b.held <= b.limit && b.room != nil:
		close(b.room)
		b.room = nil
	}
}

// Room waits until the bytes in memory are not over the limit, and returns true. After ten seconds
// it returns false.
func (b *Budget) Room() bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	room := b.room
	b.mu.Unlock()
	if room == nil {
		return true
	}
	t := time.NewTimer(roomWithin)
	defer t.Stop()
	select {
	case <-room:
		return true
	case <-t.C:
		return false
	}
}

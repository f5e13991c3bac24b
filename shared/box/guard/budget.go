package guard

import (
	"sync"
	"time"
)

// roomWithin is how long Room waits.
const roomWithin = 10 * time.Second

// Budget bounds the bytes that the boxes of a program hold of what their servers have
// written. A reader that waits for Room before it reads more keeps the sum near the bound. A
// nil Budget has no bound. A Budget is safe for concurrent use.
type Budget struct {
	most int

	mu   sync.Mutex
	held int
	room chan struct{} // closed when there is room again; nil while there is
}

// NewBudget returns a Budget of so many bytes.
func NewBudget(most int) *Budget { return &Budget{most: most} }

// Hold adds bytes that are held, also above the bound, or with a negative number takes
// them back.
func (b *Budget) Hold(bytes int) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held += bytes
	switch {
	case b.held > b.most && b.room == nil:
		b.room = make(chan struct{})
	case b.held <= b.most && b.room != nil:
		close(b.room)
		b.room = nil
	}
}

// Room waits until less is held than the bound. It returns false if that takes longer than
// ten seconds. Then what is held belongs to servers that do not finish their lines, or to
// a store that takes nothing.
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

// Held returns how many bytes are held.
func (b *Budget) Held() int {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held
}

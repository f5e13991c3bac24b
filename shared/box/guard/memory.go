package guard

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// A process makes room for others only if it was not used for tryAgain, and a client that
	// found no room may come back after the same time. So sessions that are busy do not end
	// each other's processes with every call.
	tryAgain = 10 * time.Second
	// perStart is the memory that is set aside for a process in its first time, settle, because
	// the process has not taken that memory yet.
	perStart = 32 << 20
	settle   = time.Second
	// A machine is full when 1/leftPart of its memory is left, but at least leftLeast bytes and
	// at most leftMost.
	leftPart            = 32
	leftLeast, leftMost = 32 << 20, 256 << 20
	// looks is how many times, a quarter of a second apart, Room looks whether other programs
	// have made room.
	looks = 12
)

// Memory shares the memory of the machine between the boxes of a program. A nil Memory has no
// bound. A Memory is safe for concurrent use.
type Memory struct {
	// Ask has the other programs of the machine that run boxes make room. nil: there are none.
	Ask func()

	left  func() (free, total int64, known bool)
	known func() bool   // whether left ever knows
	turn  chan struct{} // one start at a time finds out whether there is room

	mu      sync.Mutex
	boxes   map[Sleeper]bool
	started []time.Time // within settle
}

// Sleeper is a box that can give memory back.
type Sleeper interface {
	// Idlest finds the process of the box that has been idle longest, and returns since when it
	// has been idle. ok is false if no process is idle. stop ends the process and returns a
	// channel that is closed when it has ended. If the process was used meanwhile, stop leaves
	// it alone and returns nil.
	Idlest() (since time.Time, stop func() (ended <-chan struct{}), ok bool)
}

// FullError is the reason why a machine starts no process.
type FullError struct{ Free, Total int64 }

// RetryAfter returns the time after which there may be room.
func (FullError) RetryAfter() time.Duration { return tryAgain }

// Error implements error.
func (e FullError) Error() string {
	return fmt.Sprintf("the memory of this machine is full: %d of %d MiB are left, and every process has been used in the last %s; try again in %s, or see with dormouse ps what runs", e.Free>>20, e.Total>>20, tryAgain, tryAgain)
}

// NewMemory returns the Memory of a machine. left says how much is free, of how much; known is
// false where that cannot be found out. nil asks this machine.
func NewMemory(left func() (free, total int64, known bool)) *Memory {
	if left == nil {
		left = Left
	}
	known := sync.OnceValue(func() bool {
		_, _, known := left()
		return known
	})
	return &Memory{left: left, known: known, turn: make(chan struct{}, 1), boxes: map[Sleeper]bool{}}
}

// Known reports whether m bounds anything.
func (m *Memory) Known() bool {
	return m != nil && m.known()
}

// Join has the idle processes of a box make room for others, until leave is called.
func (m *Memory) Join(box Sleeper) (leave func()) {
	if m == nil {
		return func() {}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.boxes[box] = true
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.boxes, box)
	}
}

func least(total int64) int64 { return min(max(total/leftPart, leftLeast), leftMost) }

// Room waits until there is room for one more process, and counts it. If there is too little, it
// ends the process of all boxes that has been idle longest, and so on. Then it asks others. The
// caller holds no lock of a box. Errors: [FullError], and the cause of ctx.
func (m *Memory) Room(ctx context.Context) error {
	if m == nil {
		return nil
	}
	select {
	case m.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-m.turn }()
	for looked := 0; ; {
		free, total, known := m.left()
		young, first := m.young()
		var wait <-chan struct{}
		var settled <-chan time.Time
		switch {
		case !known || free-perStart*int64(young) >= least(total):
			m.mu.Lock()
			m.started = append(m.started, time.Now())
			m.mu.Unlock()
			return nil
		case young > 0:
			settled = time.After(time.Until(first.Add(settle)))
		default:
			if wait = m.Yield(); wait != nil {
				break
			}
			if m.Ask == nil || looked == looks {
				return FullError{free, total}
			}
			if looked == 0 {
				m.Ask()
			}
			looked++
			settled = time.After(time.Second / 4)
		}
		select {
		case <-wait:
		case <-settled:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// young returns how many processes were started within settle, and when the first of them was.
func (m *Memory) young() (n int, first time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.started) > 0 && time.Since(m.started[0]) >= settle {
		m.started = m.started[1:]
	}
	if len(m.started) > 0 {
		first = m.started[0]
	}
	return len(m.started), first
}

// Yield ends the process that has been idle longest, if it was idle for ten seconds. It returns nil if
// there is no such process.
func (m *Memory) Yield() (ended <-chan struct{}) {
	m.mu.Lock()
	boxes := make([]Sleeper, 0, len(m.boxes))
	for b := range m.boxes {
		boxes = append(boxes, b)
	}
	m.mu.Unlock()
	for {
		var oldest time.Time
		var stop func() <-chan struct{}
		for _, b := range boxes {
			if since, s, ok := b.Idlest(); ok && time.Since(since) >= tryAgain && (stop == nil || since.Before(oldest)) {
				oldest, stop = since, s
			}
		}
		if stop == nil {
			return nil
		}
		if ended := stop(); ended != nil {
			return ended
		}
	}
}

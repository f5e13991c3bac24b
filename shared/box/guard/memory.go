package guard

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// An idle process is ended to make room for others only if it was not used for the time
	// tryAgain, so that busy sessions do not end each other's processes.
	tryAgain = 10 * time.Second
	// perStart is how many bytes are reserved for a process that was started less than a second
	// (settle) ago, because it has not yet taken all its memory.
	perStart = 32 << 20
	settle   = time.Second
	// The memory is full when less than 1/leftPart of it is free. The threshold is at least
	// leftLeast and at most leftMost bytes.
	leftPart            = 32
	leftLeast, leftMost = 32 << 20, 256 << 20
	// looks is how many times Room checks, every quarter of a second, whether other programs have
	// made room.
	looks = 12
)

// Memory shares the memory of the machine among the boxes of a program. A nil Memory has no limit.
// A Memory is safe for concurrent use.
type Memory struct {
	// Ask asks the other programs on this machine that run boxes to make room; nil if there are
	// none.
	Ask func()

	left  func() (free, total int64, known bool) // returns the free and the total bytes
	known func() bool                            // reports whether left knows the free memory
	turn  chan struct{}                          // a semaphore, so that only one start at a time looks for room

	mu      sync.Mutex
	boxes   map[Sleeper]bool
	started []time.Time // when the processes of the last second (settle) were started
}

// Sleeper is a box that can end an idle process to free memory.
type Sleeper interface {
	// Idlest finds the process of the box that has been idle longest. The result since is the time
	// at which that process was last used, and ok is false if no process is idle. The function
	// stop ends the process, and returns a channel that is closed when the process has ended. If
	// the process was used meanwhile, stop does nothing and returns nil.
	Idlest() (since time.Time, stop func() (ended <-chan struct{}), ok bool)
}

// FullError says that there is no memory for another process. Free and Total are in bytes.
type FullError struct{ Free, Total int64 }

// RetryAfter returns how long a client should wait before it tries again.
func (FullError) RetryAfter() time.Duration { return tryAgain }

// Error says how much memory is left, and when the client may try again.
func (e FullError) Error() string {
	return fmt.Sprintf("the memory of this machine is full: %d of %d MiB are left, and every process has been used in the last %s; try again in %s, or see with dormouse ps what runs", e.Free>>20, e.Total>>20, tryAgain, tryAgain)
}

// NewMemory returns a Memory. The function left returns the free and the total bytes; known is
// false if they cannot be found out. If left is nil, [Left] is used.
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

// Known reports whether the free memory is known. If it is unknown, m sets no limit.
func (m *Memory) Known() bool {
	return m != nil && m.known()
}

// Join adds a box whose idle processes may be ended to make room for others.
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

// Room waits until there is memory for one more process, and reserves it. If there is too little,
// Room ends idle processes, the longest idle one first, and then asks other programs with Ask. The
// caller must not hold the lock of a box. The error is a [FullError] or the cause of ctx.
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

// young returns how many processes were started less than a second ago (settle), and the time at
// which the first of these was started.
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

// Yield ends the process that has been idle longest, if it has been idle for ten seconds. Yield
// returns a channel that is closed when the process has ended, or nil if there is no such process.
func (m *Memory) Yield() (ended <-chan struct{}) {
	m.mu.Lock()
	boxes := slices.Collect(maps.Keys(m.boxes))
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

// Package guard protects the boxes of a program from the faults of one of them. The [Guard] of a
// box starts every goroutine and timer of the box, and catches their panics. A [Budget] limits the
// output that all boxes hold, and a [Memory] the memory of all their processes.
//
// A Guard cannot catch what the Go runtime calls a fatal error: concurrent map writes, a stack
// overflow, or a lack of memory. It cannot tell what a panic has left half done, so the box must
// end after a panic.
package guard

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// Guard catches the panics of one box. A nil Guard catches none; it is for a program with a single
// box. A Guard is safe for concurrent use.
type Guard struct {
	log      *slog.Logger
	budget   *Budget
	memory   *Memory
	once     sync.Once
	panicked chan struct{}
	err      error

	mu   sync.Mutex
	idle []chan func() // the channels of the goroutines that wait for their next function
}

// New returns a Guard that logs the stack of a panic. The arguments budget and memory are what
// [Guard.Budget] and [Guard.Memory] return; both may be nil.
func New(log *slog.Logger, budget *Budget, memory *Memory) *Guard {
	return &Guard{log: log, budget: budget, memory: memory, panicked: make(chan struct{})}
}

// Memory returns the memory that the boxes of the program share, nil for no limit.
func (g *Guard) Memory() *Memory {
	if g == nil {
		return nil
	}
	return g.memory
}

// Budget returns the budget that the boxes of the program share, nil for no limit.
func (g *Guard) Budget() *Budget {
	if g == nil {
		return nil
	}
	return g.budget
}

// Catch, which must be deferred, catches a panic of the function that defers it.
func (g *Guard) Catch() {
	if g == nil {
		return
	}
	p := recover()
	if p == nil {
		return
	}
	g.log.Error("a panic in the code of a box", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	g.once.Do(func() {
		g.err = fmt.Errorf("a panic in the code of the box: %v", p)
		close(g.panicked)
	})
}

// Panicked returns a channel that is closed after the first panic. The channel is nil for a nil
// Guard.
func (g *Guard) Panicked() <-chan struct{} {
	if g == nil {
		return nil
	}
	return g.panicked
}

// Err returns an error about the first panic, nil if there was none.
func (g *Guard) Err() error {
	select {
	case <-g.Panicked():
		return g.err
	default:
		return nil
	}
}

// keepIdle is how long a goroutine of [Guard.Go] waits for its next function before it ends.
const keepIdle = time.Second

// Go calls the function do in another goroutine: an idle one if possible, because the stack of a new
// one would have to grow first.
func (g *Guard) Go(do func()) {
	if g == nil {
		go do()
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	last := len(g.idle) - 1
	if last < 0 {
		go g.work(do)
		return
	}
	g.idle[last] <- do
	g.idle = g.idle[:last]
}

func (g *Guard) work(do func()) {
	more, over := make(chan func(), 1), time.NewTimer(keepIdle)
	defer over.Stop()
	for {
		g.call(do)
		over.Reset(keepIdle)
		g.mu.Lock()
		g.idle = append(g.idle, more)
		g.mu.Unlock()
		select {
		case do = <-more:
			continue
		case <-over.C:
		}
		g.mu.Lock()
		i := slices.Index(g.idle, more)
		if i >= 0 {
			g.idle = slices.Delete(g.idle, i, i+1)
		}
		g.mu.Unlock()
		if i >= 0 {
			return
		}
		do = <-more
	}
}

func (g *Guard) call(do func()) {
	defer g.Catch()
	do()
}

// After waits for the time d, and then calls the function do in a goroutine of its own.
func (g *Guard) After(d time.Duration, do func()) *time.Timer {
	return time.AfterFunc(d, func() {
		defer g.Catch()
		do()
	})
}

// Package guard keeps one box from harming the others of a program that has several. Every
// goroutine and timer of such a box begins under the [Guard] of the box, which catches its
// panics. A [Budget] bounds what all of them hold, and a [Memory] their processes.
//
// A guard does not stop what the Go runtime calls fatal: concurrent writes of a map, a stack
// or a heap without bounds. It cannot tell what a panic has left half done, so its box must
// end.
package guard

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// Guard catches the panics of one box. A nil Guard catches none, for a program that has a
// single box: that program ends. A Guard is safe for concurrent use.
type Guard struct {
	log      *slog.Logger
	budget   *Budget
	memory   *Memory
	once     sync.Once
	panicked chan struct{}
	err      error

	mu   sync.Mutex
	idle []chan func() // one for each goroutine of Go that waits for more to do
}

// New returns a Guard that logs the stack of a panic. Its box holds bytes of budget, and its
// processes have a part of memory; both may be nil.
func New(log *slog.Logger, budget *Budget, memory *Memory) *Guard {
	return &Guard{log: log, budget: budget, memory: memory, panicked: make(chan struct{})}
}

// Memory returns the memory of the machine, nil for none.
func (g *Guard) Memory() *Memory {
	if g == nil {
		return nil
	}
	return g.memory
}

// Budget returns the budget of the program, nil for none.
func (g *Guard) Budget() *Budget {
	if g == nil {
		return nil
	}
	return g.budget
}

// Catch is to be deferred. It catches a panic of the function that has deferred it.
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

// Panicked returns a channel that is closed after the first panic. It is nil for a nil
// Guard.
func (g *Guard) Panicked() <-chan struct{} {
	if g == nil {
		return nil
	}
	return g.panicked
}

// Err returns an error for the first panic, nil while there was none.
func (g *Guard) Err() error {
	select {
	case <-g.Panicked():
		return g.err
	default:
		return nil
	}
}

// keepIdle is how long a goroutine of Go waits for more to do.
const keepIdle = time.Second

// Go calls do in another goroutine. It reuses one that is idle, because the stack of a new
// goroutine has to grow first, which makes each call of a tool slower.
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

// After calls do in another goroutine, when d has passed.
func (g *Guard) After(d time.Duration, do func()) *time.Timer {
	return time.AfterFunc(d, func() {
		defer g.Catch()
		do()
	})
}

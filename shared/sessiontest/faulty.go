package sessiontest

import (
	"context"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/intercept"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Fault is what Faulty did to a call. It is the cause of the Unavailable error
// the caller got: errors.Is(err, sessiontest.Unanswered).
type Fault string

// The faults. They are told apart because a caller that repeats its call must be
// right after both.
const (
	Lost       Fault = "not stored"                      // the call did not reach the store
	Unanswered Fault = "stored, but the answer was lost" // the store did it; nobody was told
)

// Error returns the name of the fault.
func (f Fault) Error() string { return string(f) }

// Faults says how often calls fail: chances between 0 and 1.
type Faults struct {
	Lost       float64       // of an Unavailable before the call
	Unanswered float64       // of an Unavailable after the call
	Slow       float64       // of a delay before the call
	Delay      time.Duration // the longest such delay
}

// Faulty is a store that fails at random, as a store in another place does. The same
// calls in the same order with the same seed fail the same way. Safe for concurrent use.
type Faulty struct {
	*intercept.Store

	mu     sync.Mutex
	random *rand.Rand
	all    Faults
	by     map[string]Faults
	done   map[Fault]int
}

// NewFaulty makes the calls of inner fail. Closing it closes inner; that never fails.
func NewFaulty(inner session.Store, seed uint64, all Faults) *Faulty {
	f := &Faulty{random: rand.New(rand.NewPCG(seed, 0)), all: all, by: map[string]Faults{}, done: map[Fault]int{}}
	f.Store = intercept.New(inner, f.call)
	return f
}

// Set changes how often calls fail from now on: those of one method of
// session.Store, or with "" all that are not set by name. It panics if there is
// no such method.
func (f *Faulty) Set(method string, faults Faults) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if method == "" {
		f.all = faults
		return
	}
	if _, ok := reflect.TypeFor[session.Store]().MethodByName(method); !ok {
		panic("sessiontest: session.Store has no method " + method)
	}
	f.by[method] = faults
}

// Done says how many calls have failed in one way.
func (f *Faulty) Done(fault Fault) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.done[fault]
}

// draw decides the fate of one call. It always draws as often, so that a changed
// rate does not change the fate of every call that follows.
func (f *Faulty) draw(method string) (lost, unanswered bool, delay time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	faults, ok := f.by[method]
	if !ok {
		faults = f.all
	}
	lost = f.random.Float64() < faults.Lost
	unanswered = f.random.Float64() < faults.Unanswered && !lost
	slow, part := f.random.Float64() < faults.Slow, f.random.Float64()
	if slow {
		delay = time.Duration(part * float64(faults.Delay))
	}
	if lost {
		f.done[Lost]++
	}
	if unanswered {
		f.done[Unanswered]++
	}
	return lost, unanswered, delay
}

// call makes one call of the store, under the faults. A Wait fails before it has begun
// to wait, or after.
func (f *Faulty) call(ctx context.Context, c *intercept.Call, do func(context.Context) error) error {
	lost, unanswered, delay := f.draw(c.Method)
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return fault(c.Method, ctx.Err())
		}
	}
	if lost {
		return fault(c.Method, Lost)
	}
	err := do(ctx)
	if unanswered {
		return fault(c.Method, Unanswered)
	}
	return err
}

func fault(method string, cause error) error {
	return session.Errorf(session.Unavailable, "the store did not answer %s; try again", method).Because(cause)
}

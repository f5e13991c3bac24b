package storagetest

import (
	"context"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/intercept"
)

// Fault is a way in which [Faulty] makes a call fail. The caller gets an Unavailable error with
// the Fault as its cause.
type Fault string

// The faults. The caller cannot tell them apart, and must repeat the call correctly after either.
const (
	Lost       Fault = "not stored"                      // the call did not reach the store
	Unanswered Fault = "stored, but the answer was lost" // the store has executed the call
)

// Error returns the name of the fault.
func (f Fault) Error() string { return string(f) }

// Faults has the chances, between 0 and 1, that a call fails.
type Faults struct {
	Lost       float64       // chance of an Unavailable error instead of the call
	Unanswered float64       // chance of an Unavailable error after the call
	Slow       float64       // chance of a delay before the call
	Delay      time.Duration // the longest such delay
}

// Faulty is a store that fails at random, as a remote store does. With the same seed, the same
// calls in the same order fail in the same way. It is safe for concurrent use.
type Faulty struct {
	*intercept.Store

	mu     sync.Mutex
	random *rand.Rand
	all    Faults
	by     map[string]Faults
	done   map[Fault]int
}

// NewFaulty returns a store that makes the calls of inner fail. Closing it closes inner; Close
// never fails at random.
func NewFaulty(inner storage.Store, seed uint64, all Faults) *Faulty {
	f := &Faulty{random: rand.New(rand.NewPCG(seed, 0)), all: all, by: map[string]Faults{}, done: map[Fault]int{}}
	f.Store = intercept.New(inner, f.call)
	return f
}

// Set sets the chances of faults for the calls of one method, which [Methods] must name. With "" it
// sets the chances for all methods that have none of their own. Set panics for any other name.
func (f *Faulty) Set(method string, faults Faults) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if method == "" {
		f.all = faults
		return
	}
	if !slices.Contains(Methods(), method) {
		panic("storagetest: a store has no call " + method)
	}
	f.by[method] = faults
}

// Methods returns all values that [intercept.Call].Method can have.
func Methods() (names []string) {
	all := reflect.TypeFor[storage.Store]()
	for i := range all.NumMethod() {
		switch name := all.Method(i).Name; name {
		case "Close":
		case "Keys", "Grants", "UpstreamTokens":
			kind := strings.TrimSuffix(name, "s")
			names = append(names, "Create"+kind, kind, "Save"+kind, "List"+name)
		default:
			names = append(names, name)
		}
	}
	return names
}

// Done returns how many calls have failed with this fault.
func (f *Faulty) Done(fault Fault) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.done[fault]
}

// draw decides by chance how one call fails. It always draws the same number of random values,
// so that a changed chance does not change the faults of later calls of other methods.
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

// call makes one call of the store with faults. A Wait fails before it begins to wait, or
// after it has waited.
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
	return storage.Errorf(storage.Unavailable, "the store did not answer %s; try again", method).Because(cause)
}

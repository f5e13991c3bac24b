package lambda

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// function is one function of a pool: its processes, and the invocations that wait for
// one. A process has one invocation at a time, as on Lambda.
//
// The pool delivers an invocation at most once: if a process may have read it, no other
// process gets it. We say that a process is coming while it starts, and from the end of an
// answer until it asks for the next invocation. An invocation waits for a coming process,
// unless others already wait for it; then the pool starts another process.
type function struct {
	pool *Pool
	FunctionConfig

	mu        sync.Mutex
	closed    bool
	instances map[*instance]bool
	waiting   []*invocation // the oldest first
}

type invocation struct {
	id, tenant string
	payload    []byte
	result     chan result // buffered, for one result; only the goroutine that has claimed the invocation sends it
	claimed    atomic.Bool

	// Guarded by the function's mu.
	inst      *instance
	started   time.Time
	timer     *time.Timer // kills the process after Timeout, unless the process asks for its next invocation before that
	delivered bool        // the process may have read the payload
	answering bool
}

type result struct {
	answer *Invocation
	err    error
}

func newInvocation(tenant string, payload []byte) *invocation {
	return &invocation{id: uuid.NewString(), tenant: tenant, payload: payload, result: make(chan result, 1)}
}

// claim returns true for its first caller only. Only that caller may send a result.
func (inv *invocation) claim() bool { return inv.claimed.CompareAndSwap(false, true) }

func (inv *invocation) fail(why error) {
	if inv.claim() {
		inv.result <- result{answer: &Invocation{Body: http.NoBody, Failed: why}}
	}
}

// count returns the number of instances that satisfy fits.
func (f *function) count(fits func(*instance) bool) (n int) {
	for i := range f.instances {
		if fits(i) {
			n++
		}
	}
	return n
}

// coming returns how many instances of a tenant are coming; see [function]. Old instances do not
// count, because they are stopped when they ask for an invocation.
func (f *function) coming(tenant string) int {
	return f.count(func(i *instance) bool {
		return (i.state == starting || i.state == returning) && !i.old && i.tenant == tenant
	})
}

// live returns how many instances count against MaxInstances.
func (f *function) live() int { return f.count(func(i *instance) bool { return i.state != stopping }) }

// waits returns how many invocations of a tenant wait for a process.
func (f *function) waits(tenant string) (n int) {
	for _, inv := range f.waiting {
		if inv.tenant == tenant {
			n++
		}
	}
	return n
}

// free returns an idle instance of a tenant: of several, the one that was used last.
func (f *function) free(tenant string) (last *instance) {
	for i := range f.instances {
		if i.state == idle && i.tenant == tenant && (last == nil || i.since.After(last.since)) {
			last = i
		}
	}
	return last
}

// full reports whether one more invocation of a tenant would find no process, and the function
// may not start another one.
func (f *function) full(tenant string) bool {
	return f.free(tenant) == nil && f.coming(tenant) <= f.waits(tenant) && f.live() >= f.MaxInstances
}

// submit gives inv to the idle process that was used last. If none is idle, inv waits for a
// process.
func (f *function) submit(inv *invocation) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch last := f.free(inv.tenant); {
	case f.closed:
		return ErrClosed
	case last != nil:
		f.assign(inv, last)
	case f.full(inv.tenant):
		return ErrThrottled
	default:
		f.waiting = append(f.waiting, inv)
		f.refill()
	}
	return nil
}

// refill starts processes for tenants that have more waiting invocations than coming processes; see
// [function].
func (f *function) refill() {
	need := map[string]int{}
	for _, inv := range f.waiting {
		need[inv.tenant]++
		if f.coming(inv.tenant) < need[inv.tenant] && f.live() < f.MaxInstances && !f.closed {
			f.start(inv.tenant)
		}
	}
}

// abandon gives inv up, which then never gets a result. It returns false if another goroutine has
// claimed inv already: that one sends a result.
func (f *function) abandon(inv *invocation) bool {
	if !inv.claim() {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting = slices.DeleteFunc(f.waiting, func(w *invocation) bool { return w == inv })
	return true
}

// assign gives inv to an idle process.
func (f *function) assign(inv *invocation, i *instance) {
	i.state, i.inv = busy, inv
	inv.inst, inv.started = i, time.Now()
	inv.timer = time.AfterFunc(f.Timeout, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if i.inv == inv {
			f.kill(i, fmt.Sprintf("timed out after %s", f.Timeout))
		}
	})
	i.work <- inv // the channel has room, because the process has taken its last invocation
}

// next waits for the next invocation of process i. It returns nil when gone is closed,
// and for a process that is dead.
func (f *function) next(i *instance, gone <-chan struct{}) *invocation {
	f.mu.Lock()
	known := f.instances[i]
	if known && i.state != stopping {
		f.arrived(i)
	}
	f.mu.Unlock()
	if !known {
		return nil
	}
	select {
	case inv := <-i.work:
		return f.deliver(inv)
	case <-gone:
		// An invocation that was assigned meanwhile is not delivered. When the process has
		// ended, the method buried puts that invocation back into f.waiting.
		return nil
	}
}

// arrived handles the request of process i for an invocation. The process gets the invocation
// that has waited longest.
func (f *function) arrived(i *instance) {
	switch i.state {
	case starting:
		i.sleeper = time.AfterFunc(f.pool.cfg.SleepAfter, func() { f.doze(i) })
	case returning:
		i.inv.timer.Stop()
	default:
		return // a process that asks twice for the next invocation
	}
	i.state, i.since, i.inv = idle, time.Now(), nil
	if i.old {
		f.stop(i, replaced)
		f.refill()
		return
	}
	if at := slices.IndexFunc(f.waiting, func(inv *invocation) bool { return inv.tenant == i.tenant }); at >= 0 {
		inv := f.waiting[at]
		f.waiting = slices.Delete(f.waiting, at, at+1)
		f.assign(inv, i)
	}
}

// deliver marks inv as delivered and returns it, or nil if its process no longer has it.
func (f *function) deliver(inv *invocation) *invocation {
	f.mu.Lock()
	defer f.mu.Unlock()
	if inv.inst.inv != inv {
		return nil
	}
	inv.delivered = true
	if f.pool.cfg.Began != nil {
		f.pool.cfg.Began(inv.inst.cmd.Process.Pid, inv.payload)
	}
	return inv
}

// take returns the invocation of process i, which has begun to answer it. It returns nil if i
// has no invocation with this id, or has begun an answer to it before.
func (f *function) take(i *instance, id string) *invocation {
	f.mu.Lock()
	defer f.mu.Unlock()
	inv := i.inv
	if inv == nil || inv.id != id || inv.answering {
		return nil
	}
	inv.answering = true
	return inv
}

// complete records that the answer to inv has ended. The time limit goes on until the
// process asks for the next invocation.
func (f *function) complete(inv *invocation) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := inv.inst; i.inv == inv && i.state == busy {
		i.state = returning
	}
}

// doze stops i if it has been idle for SleepAfter. Otherwise it sets i.sleeper to call doze again.
func (f *function) doze(i *instance) {
	f.mu.Lock()
	defer f.mu.Unlock()
	after := f.pool.cfg.SleepAfter
	switch left := after - time.Since(i.since); {
	case i.state == stopping:
	case i.state != idle:
		i.sleeper.Reset(after)
	case left > 0:
		i.sleeper.Reset(left)
	default:
		f.stop(i, fmt.Sprintf("idle for %s", after))
	}
}

const replaced = "replaced"

func (f *function) renew() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.instances {
		i.old = true
		if i.state == idle {
			f.stop(i, replaced)
		}
	}
	f.refill()
}

// close stops all processes. Invocations that wait for a process fail with ErrClosed.
func (f *function) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for _, inv := range f.waiting {
		if inv.claim() {
			inv.result <- result{err: fmt.Errorf("invoke function %s: %w", f.Name, ErrClosed)}
		}
	}
	f.waiting = nil
	for i := range f.instances {
		f.stop(i, "the pool was closed")
	}
}

func (f *function) killAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.instances {
		f.kill(i, "the pool was closed")
	}
}

// buried forgets a process that has ended. The invocation of the process fails if the process may
// have read it, and otherwise waits for another process.
func (f *function) buried(i *instance) {
	f.mu.Lock()
	delete(f.instances, i)
	f.pool.instances.Delete(i.id)
	var lost []*invocation
	if inv := i.inv; inv != nil {
		inv.timer.Stop()
		switch {
		case inv.answering: // the goroutine that reads the answer sends the result
		case inv.delivered || f.closed:
			lost = append(lost, inv)
		case !inv.claimed.Load():
			f.waiting = slices.Insert(f.waiting, 0, inv)
		}
	}
	if i.sleeper != nil {
		i.sleeper.Stop()
	} else if i.state != stopping && !i.old {
		// The process has never asked for an invocation, and another process would fail in the same
		// way. So an invocation fails if no other process is coming for it.
		excess := f.waits(i.tenant) - f.coming(i.tenant)
		f.waiting = slices.DeleteFunc(f.waiting, func(inv *invocation) bool {
			if inv.tenant != i.tenant || excess <= 0 {
				return false
			}
			excess--
			lost = append(lost, inv)
			return true
		})
	}
	f.refill()
	f.mu.Unlock()
	close(i.dead)
	for _, inv := range lost {
		inv.fail(i.failure)
	}
}

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
// one. A process has one invocation at a time, as on Lambda. The states of an invocation:
//
//	submit ──▶ waiting ──▶ assigned ──▶ delivered ──▶ answering ──▶ completed
//	   │           ▲          │  ▲
//	   │           └──────────┘  │ its process died before it was delivered
//	   └── a process is idle ────┘
//
// The pool delivers an invocation at most once. If a process may have read an invocation,
// no other process gets it.
//
// A process counts as coming while it starts, and from its answer until it asks for the
// next invocation. Callers wait for a process that is coming rather than start another
// one.
type function struct {
	pool *Pool
	FunctionConfig

	mu        sync.Mutex
	closed    bool
	instances map[*instance]bool
	waiting   []*invocation // the oldest first
}

type invocation struct {
	id      string
	fn      *function
	tenant  string
	payload []byte
	result  chan result // has room for one; the claiming side fills it
	claimed atomic.Bool

	// Guarded by fn.mu.
	inst      *instance
	started   time.Time
	timer     *time.Timer // runs until the process asks for the next invocation, like Lambda's limit
	delivered bool        // the process may have read it
	answering bool
	verdict   *FunctionError // why the pool ended it
}

type result struct {
	answer *Invocation
	err    error
}

func newInvocation(f *function, tenant string, payload []byte) *invocation {
	return &invocation{id: uuid.NewString(), fn: f, tenant: tenant, payload: payload, result: make(chan result, 1)}
}

// claim returns true for its first caller only. That caller must either deliver the result
// or abandon it.
func (inv *invocation) claim() bool { return inv.claimed.CompareAndSwap(false, true) }

func (inv *invocation) fail(why *FunctionError) {
	if inv.claim() {
		inv.result <- result{answer: &Invocation{Body: http.NoBody, Failed: why}}
	}
}

func (inv *invocation) error(kind, format string, args ...any) *FunctionError {
	return &FunctionError{
		Function: inv.fn.Name, RequestID: inv.id, Type: kind,
		Message: fmt.Sprintf("RequestId: %s Error: ", inv.id) + fmt.Sprintf(format, args...),
	}
}

// coming returns how many instances of a tenant will ask for an invocation. An old one is
// stopped when it asks.
func (f *function) coming(tenant string) (n int) {
	for i := range f.instances {
		if (i.state == StateStarting || i.state == stateReturning) && !i.old && i.tenant == tenant {
			n++
		}
	}
	return n
}

// waits returns how many invocations of a tenant wait for a process.
func (f *function) waits(tenant string) (n int) {
	for _, inv := range f.waiting {
		if inv.tenant == tenant {
			n++
		}
	}
	return n
}

// idle returns the idle instance of a tenant that was used last, or nil.
func (f *function) idle(tenant string) (last *instance) {
	for i := range f.instances {
		if i.state == StateIdle && i.tenant == tenant && (last == nil || i.since.After(last.since)) {
			last = i
		}
	}
	return last
}

// full reports whether a tenant has no room for one more invocation. No process is free
// or being started for it, and none may be started.
func (f *function) full(tenant string) bool {
	return f.idle(tenant) == nil && f.coming(tenant) <= f.waits(tenant) && f.live() >= f.MaxInstances
}

// live returns how many instances count against MaxInstances.
func (f *function) live() (n int) {
	for i := range f.instances {
		if i.state != StateStopping {
			n++
		}
	}
	return n
}

// submit finds a process for inv: the idle one that was used last, or one that is coming.
func (f *function) submit(inv *invocation) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return ErrClosed
	}
	if last := f.idle(inv.tenant); last != nil {
		f.assign(inv, last)
		return nil
	}
	if f.full(inv.tenant) {
		return ErrThrottled
	}
	f.waiting = append(f.waiting, inv)
	f.refill()
	return nil
}

// refill starts processes if a tenant has more waiting invocations than processes that
// will soon take one.
func (f *function) refill() {
	need := map[string]int{}
	for _, inv := range f.waiting {
		need[inv.tenant]++
		if f.coming(inv.tenant) < need[inv.tenant] && f.live() < f.MaxInstances && !f.closed {
			f.start(inv.tenant)
		}
	}
}

// abandon reports whether the caller gave up before the result was claimed. Then no
// result comes.
func (f *function) abandon(inv *invocation) bool {
	if !inv.claim() {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting = slices.DeleteFunc(f.waiting, func(w *invocation) bool { return w == inv })
	return true
}

// assign gives inv to an idle process. Called with mu held.
func (f *function) assign(inv *invocation, i *instance) {
	now := time.Now()
	i.state, i.since, i.inv = StateBusy, now, inv
	inv.inst, inv.started = i, now
	inv.timer = time.AfterFunc(f.Timeout, func() { f.expire(inv) })
	i.work <- inv // the channel has room, because the process has taken its last invocation
}

// next waits for the next invocation of process i. It returns nil when gone is closed,
// and for a process that is dead or stopping.
func (f *function) next(i *instance, gone <-chan struct{}) *invocation {
	f.mu.Lock()
	if !f.instances[i] {
		// The process died while its request was in flight. If it got an invocation now,
		// that would never end.
		f.mu.Unlock()
		return nil
	}
	if i.state == StateStopping {
		f.mu.Unlock()
		<-gone
		return nil
	}
	f.arrived(i)
	f.mu.Unlock()
	select {
	case inv := <-i.work:
		return f.deliver(inv)
	case <-gone:
		// If an invocation was assigned meanwhile, it was not delivered. It goes back to
		// the queue when the pool sees that the process is dead.
		return nil
	}
}

// arrived handles the request of process i for an invocation. The process gets the one
// that has waited longest.
func (f *function) arrived(i *instance) {
	switch i.state {
	case StateStarting:
		i.initTimer.Stop()
		i.sleeper = time.AfterFunc(f.pool.cfg.SleepAfter, func() { f.doze(i) })
	case stateReturning:
		i.inv.timer.Stop()
	default:
		return // it repeats its request
	}
	i.state, i.since, i.inv = StateIdle, time.Now(), nil
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

// deliver marks an invocation as delivered. From this moment the process may have read it,
// and no other process gets it.
func (f *function) deliver(inv *invocation) *invocation {
	f.mu.Lock()
	defer f.mu.Unlock()
	if inv.inst.inv != inv {
		return nil
	}
	inv.delivered = true
	if f.pool.cfg.Began != nil {
		f.pool.cfg.Began(inv.inst.pid(), inv.payload)
	}
	return inv
}

// take returns the invocation to which an answer of i belongs. It returns nil if there is
// none or it was answered already.
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
	if i := inv.inst; i.inv == inv && i.state == StateBusy {
		i.state = stateReturning
	}
}

// expire kills the process of an invocation that ran out of time, even one that has
// answered but does not ask for more.
func (f *function) expire(inv *invocation) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := inv.inst
	if i.inv != inv {
		return
	}
	if inv.verdict == nil && !i.doomed {
		inv.verdict = inv.error(ErrorTimeout, "Task timed out after %.2f seconds", f.Timeout.Seconds())
	}
	f.kill(i, fmt.Sprintf("timed out after %s", f.Timeout))
}

// truncated kills the process whose answer to inv ended early while the process went on.
func (f *function) truncated(inv *invocation) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if inv.verdict == nil {
		inv.verdict = inv.error(ErrorResponse, "the answer broke off before its end")
	}
	f.kill(inv.inst, "its answer broke off")
}

// doze stops i if it has been idle for long enough. Otherwise it checks again later.
func (f *function) doze(i *instance) {
	f.mu.Lock()
	defer f.mu.Unlock()
	after := f.pool.cfg.SleepAfter
	left := after - time.Since(i.since)
	switch {
	case i.state == StateStopping:
	case i.state != StateIdle:
		i.sleeper.Reset(after)
	case left > 0:
		i.sleeper.Reset(left)
	default:
		f.stop(i, fmt.Sprintf("idle for %s", after))
	}
}

func (f *function) renew() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.instances {
		i.old = true
		if i.state == StateIdle {
			f.stop(i, replaced)
		}
	}
	f.refill()
}

const replaced = "replaced"

// close stops everything. Invocations that wait get ErrClosed.
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

// buried forgets a process that has ended completely. It then settles the invocation of
// the process, and those that waited for the process.
func (f *function) buried(i *instance) {
	f.mu.Lock()
	delete(f.instances, i)
	f.pool.instances.Delete(i.id)
	i.initTimer.Stop()
	if i.sleeper != nil {
		i.sleeper.Stop()
	}
	var lost []*invocation
	if inv := i.inv; inv != nil {
		inv.timer.Stop()
		switch {
		case inv.answering:
			// The complete answer may still be in the socket. The goroutine that reads the
			// socket decides.
		case inv.delivered || f.closed:
			lost = append(lost, inv)
		case !inv.claimed.Load():
			f.waiting = slices.Insert(f.waiting, 0, inv)
		}
		i.inv = nil
	}
	if i.sleeper == nil && !i.asked && !i.old {
		// The process never got ready, and another one would fail in the same way. The
		// invocations that counted on it get its failure.
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
	end := i.endEvent()
	f.mu.Unlock()

	if end.PID != 0 {
		f.pool.cfg.Recorder.Record(end)
	}
	close(i.dead)
	for _, inv := range lost {
		inv.fail(i.failure(inv))
	}
}

package lambda

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
)

// function is one function of a pool: its processes and the invocations that wait
// for one. An invocation goes this way:
//
//	submit ──▶ waiting ──▶ assigned ──▶ delivered ──▶ answering ──▶ completed
//	   │           ▲          │  ▲
//	   │           └──────────┘  │ its process died before it was delivered
//	   └── a poll is idle ───────┘
//
// It is delivered once at most: what a process may have read is never given to
// another one.
//
// A process is free when one of its polls (requests for the next invocation) is
// idle. A poll is "coming" from the start of its process, and from the end of an
// answer, until it is there: whoever waits for it need not start a new process.
type function struct {
	pool *Pool
	FunctionConfig

	mu        sync.Mutex
	closed    bool
	instances map[*instance]bool
	live      int           // instances that are not being stopped
	coming    int           // polls on their way, of all instances
	idle      []*poll       // the last used last
	waiting   []*invocation // the oldest first; never more than coming, but after a death
	count     FunctionStatus
}

type poll struct {
	inst *instance
	work chan *invocation // one place: who hands over never waits
}

type invocation struct {
	id      string
	fn      *function
	payload []byte
	result  chan result // one place, filled by whoever claims
	claimed atomic.Bool

	// Guarded by fn.mu.
	inst      *instance
	started   time.Time
	timer     *time.Timer // runs until the process asks again, as Lambda's limit does
	delivered bool        // may have been read by the process
	answering bool
	verdict   *FunctionError // why the pool ended it
}

type result struct {
	answer *Invocation
	err    error
}

func newInvocation(f *function, payload []byte) *invocation {
	return &invocation{id: uuid.NewString(), fn: f, payload: payload, result: make(chan result, 1)}
}

// claim is true for the first who wants to give (or give up) the result.
func (inv *invocation) claim() bool { return inv.claimed.CompareAndSwap(false, true) }

func (inv *invocation) fail(why *FunctionError) {
	if inv.claim() {
		inv.result <- result{answer: &Invocation{Body: noBody{}, Failed: why}}
	}
}

func (inv *invocation) error(kind, format string, args ...any) *FunctionError {
	return &FunctionError{
		Function: inv.fn.Name, RequestID: inv.id, Type: kind,
		Message: fmt.Sprintf("RequestId: %s Error: ", inv.id) + fmt.Sprintf(format, args...),
	}
}

// submit finds a process for inv.
func (f *function) submit(inv *invocation) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return ErrClosed
	}
	if n := len(f.idle); n > 0 {
		last := f.idle[n-1]
		f.idle[n-1] = nil
		f.idle = f.idle[:n-1]
		f.assign(inv, last.inst)
		last.work <- inv
		return nil
	}
	if f.coming <= len(f.waiting) && f.live >= f.MaxInstances {
		f.count.Throttled++
		return ErrThrottled
	}
	f.waiting = append(f.waiting, inv)
	f.refill()
	return nil
}

// refill starts as many processes as there are waiting invocations without a
// coming poll.
func (f *function) refill() {
	for f.coming < len(f.waiting) && f.live < f.MaxInstances && !f.closed {
		f.start()
	}
}

// abandon reports whether the caller went first: nobody will fill the result.
func (f *function) abandon(inv *invocation) bool {
	if !inv.claim() {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if k := slices.Index(f.waiting, inv); k >= 0 {
		f.waiting = slices.Delete(f.waiting, k, k+1)
	}
	return true
}

func (f *function) assign(inv *invocation, i *instance) {
	now := time.Now()
	if len(i.inflight) == 0 {
		i.since = now
	}
	inv.inst, inv.started = i, now
	inv.timer = time.AfterFunc(f.Timeout, func() { f.expire(inv) })
	i.inflight[inv.id] = inv
}

// poll is one request of the process i for its next invocation. It waits until
// there is one or until gone is closed; then it returns false.
func (f *function) poll(i *instance, gone <-chan struct{}) (*invocation, bool) {
	f.mu.Lock()
	if !f.instances[i] {
		// The process died while its request was on the way here. It is buried: what it
		// was given now, nobody would end.
		f.mu.Unlock()
		return nil, false
	}
	if i.ending() {
		f.mu.Unlock()
		<-gone
		return nil, false
	}
	f.arrive(i)
	if len(f.waiting) > 0 {
		inv := f.waiting[0]
		f.waiting = slices.Delete(f.waiting, 0, 1)
		f.assign(inv, i)
		f.mu.Unlock()
		return f.deliver(inv)
	}
	p := &poll{inst: i, work: make(chan *invocation, 1)}
	f.idle = append(f.idle, p)
	f.mu.Unlock()
	select {
	case inv := <-p.work:
		return f.deliver(inv)
	case <-gone:
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if k := slices.Index(f.idle, p); k >= 0 {
		f.idle = slices.Delete(f.idle, k, k+1)
	}
	// What was assigned meanwhile goes back to the queue when the process is seen
	// to be dead: it was not delivered.
	return nil, false
}

// arrive notes that one of the coming polls of i is there.
func (f *function) arrive(i *instance) {
	if !i.ready {
		i.ready = true
		i.initTimer.Stop()
		i.sleeper = time.AfterFunc(f.pool.cfg.SleepAfter, func() { f.doze(i) })
		took := time.Since(i.born)
		f.pool.cfg.Recorder.Record(journal.Event{Kind: journal.FunctionReady, Name: f.Name, PID: i.pid(), Duration: took})
	}
	if n := len(i.returning); n > 0 {
		i.returning[n-1].timer.Stop()
		i.returning[n-1] = nil
		i.returning = i.returning[:n-1]
	}
	if i.coming > 0 {
		i.coming--
		f.coming--
	}
	if len(i.inflight) == 0 {
		i.since = time.Now()
	}
}

// deliver is the point of no return: from here on the process may have read the
// invocation, and it is not given to another one.
func (f *function) deliver(inv *invocation) (*invocation, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if inv.inst.inflight[inv.id] != inv {
		return nil, false
	}
	inv.delivered = true
	inv.inst.served++
	f.count.Invoked++
	return inv, true
}

// take finds the invocation an answer of i belongs to; nil if there is none or if
// it was answered already.
func (f *function) take(i *instance, id string) *invocation {
	f.mu.Lock()
	defer f.mu.Unlock()
	inv := i.inflight[id]
	if inv == nil || inv.answering {
		return nil
	}
	inv.answering = true
	return inv
}

// complete notes that the answer of inv has ended. The process is expected to ask
// for more.
func (f *function) complete(inv *invocation, failed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if failed {
		f.count.Failed++
	}
	i := inv.inst
	if i.inflight[inv.id] != inv {
		return // the process is dead
	}
	delete(i.inflight, inv.id)
	i.returning = append(i.returning, inv)
	if !i.retired {
		i.coming++
		f.coming++
	}
}

// expire kills the process of an invocation that ran out of time, also when it has
// answered but does not ask for more.
func (f *function) expire(inv *invocation) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := inv.inst
	if i.inflight[inv.id] != inv && !slices.Contains(i.returning, inv) {
		return
	}
	if inv.verdict == nil && !i.doomed {
		inv.verdict = inv.error(ErrorTimeout, "Task timed out after %.2f seconds", f.Timeout.Seconds())
	}
	f.kill(i, fmt.Sprintf("timed out after %s", f.Timeout))
}

// truncated kills the process whose answer to inv broke off while it lived on.
func (f *function) truncated(inv *invocation) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if inv.verdict == nil {
		inv.verdict = inv.error(ErrorResponse, "the answer broke off before its end")
	}
	f.kill(inv.inst, "its answer broke off")
}

// doze stops i if it has been idle for long enough, else it looks again later.
func (f *function) doze(i *instance) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i.ending() {
		return
	}
	after := f.pool.cfg.SleepAfter
	if len(i.inflight) > 0 || i.coming > 0 {
		i.sleeper.Reset(after)
		return
	}
	if left := after - time.Since(i.since); left > 0 {
		i.sleeper.Reset(left)
		return
	}
	f.stop(i, fmt.Sprintf("idle for %s", after))
}

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

// buried takes leave of a process of which nothing is left, and does what follows
// for the invocations it had or was expected to take.
func (f *function) buried(i *instance) {
	f.mu.Lock()
	f.retire(i)
	delete(f.instances, i)
	f.pool.instances.Delete(i.id)
	i.initTimer.Stop()
	if i.sleeper != nil {
		i.sleeper.Stop()
	}
	for _, inv := range i.returning {
		inv.timer.Stop()
	}
	var lost, again []*invocation
	for _, inv := range i.inflight {
		inv.timer.Stop()
		switch {
		case inv.answering:
			// Its answer may be whole and still on the socket: who reads it decides.
		case inv.delivered || f.closed:
			lost = append(lost, inv)
			f.count.Failed++
		case !inv.claimed.Load():
			again = append(again, inv)
		}
	}
	clear(i.inflight)
	i.returning = nil
	f.waiting = append(again, f.waiting...)
	if !i.ready && !i.asked {
		// Another process would fail in the same way: those who counted on this one
		// get its failure instead of the next attempt.
		excess := max(0, len(f.waiting)-f.coming)
		lost = append(lost, f.waiting[:excess]...)
		f.waiting = slices.Delete(f.waiting, 0, excess)
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

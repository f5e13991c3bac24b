package native

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Times of what is executed.
const (
	// traceAfter is when an item is put for a request that has not ended by then. What
	// it has said until then goes into the log with its answer.
	traceAfter = time.Second
	// gatherFor is for how long what it says later is gathered for one write.
	gatherFor = 100 * time.Millisecond
	// lease is for how long an item says that its request is executed, renew how often
	// that is said anew, and look how often it is seen whether it still stands: a client
	// may have cancelled elsewhere.
	lease = 30 * time.Second
	renew = 10 * time.Second
	look  = 2 * time.Second
	// spare is what remains of a function's time when what it executes is given up.
	spare = 5 * time.Second
	// unwind is how long a handler may take to notice that it was stopped.
	unwind = time.Second
)

// Bounds of one write, which is less than the log takes: for one answer more.
const (
	mostEvents = session.MaxBatchEvents / 2
	mostBytes  = 4 << 20
	mostPushed = 50 // events that are also sent to a connection
)

// run executes one delivery, or the next round of one: it is the only writer of its
// stream until it is over. What is below mu is shared with the handlers; all else is
// the goroutine's that executes.
type run struct {
	k       *Backend
	ctx     context.Context // of the invocation, without its end
	in      *inside
	address session.Address
	ended   func()

	calls   []*call
	round   int
	gen     session.Generation // names this run in its item
	base    session.Index      // the last event that is in the log
	traced  bool               // an item says that it is executed here
	renewed time.Time          // when it said so last
	lost    bool               // somebody else has ended the request
	parked  bool               // the item is suspended
	until   time.Time          // when it is given up; zero for never
	asks    []*asking
	trace   chan chan error
	stopped chan struct{}
	stop    func() // closes stopped
	over    chan struct{}
	running atomic.Bool

	mu   sync.Mutex
	said [][]byte
	size int
	shut bool
	news chan struct{} // has room for one: something was said

	shown *shown // what of it is in the log, for who waits in this function
}

// newRun makes the run of a delivery. ctx is that of the invocation: its end stops
// nothing, for whoever waits may go; but its deadline holds.
func (k *Backend) newRun(ctx context.Context, a session.Address, s session.Session, h Hosted) *run {
	r := &run{
		k: k, ctx: context.WithoutCancel(ctx), address: a,
		in:      &inside{k: k, record: s, server: h, extra: extraOf(s, headerOf(ctx))},
		gen:     session.Generation(rand.Int64N(1<<52) + 1),
		trace:   make(chan chan error),
		stopped: make(chan struct{}), over: make(chan struct{}), news: make(chan struct{}, 1),
		shown: newShown(),
	}
	r.stop = sync.OnceFunc(func() { close(r.stopped) })
	if deadline, ok := ctx.Deadline(); ok {
		r.until = deadline.Add(-spare)
	}
	if h.ToolTimeout > 0 {
		if limit := time.Now().Add(h.ToolTimeout); r.until.IsZero() || limit.Before(r.until) {
			r.until = limit
		}
	}
	return r
}

// enter counts the run among what this function executes. It has to be followed by
// execute.
func (r *run) enter(ctx context.Context) {
	r.ended = sync.OnceFunc(begun(ctx))
	r.running.Store(true)
	r.k.mu.Lock()
	defer r.k.mu.Unlock()
	r.k.running[r.address.Stream] = r
}

// take says what is executed: the requests among messages. later is for those of
// another round than the first.
func (r *run) take(msgs []wire.Message, later bool) {
	for _, m := range msgs {
		if m.Kind == wire.Request {
			r.calls = append(r.calls, &call{r: r, id: m.ID, m: m, later: later})
		}
	}
}

// execute does all of it, to the end of the request or of its round.
func (r *run) execute() {
	defer r.ended()
	results := make(chan outcome, len(r.calls))
	for _, c := range r.calls {
		go func() { results <- c.execute() }()
	}
	r.follow(results)
	r.finish()
	r.leave()
	r.wait()
}

// leave takes the run from what this function executes. Where all handlers have
// returned, the function need not stay for their connections.
func (r *run) leave() {
	r.running.Store(false)
	r.k.mu.Lock()
	delete(r.k.running, r.address.Stream)
	r.k.mu.Unlock()
	close(r.over)
	if !slices.ContainsFunc(r.calls, func(c *call) bool { return !c.answered.Load() }) {
		r.ended()
	}
}

// follow takes what the calls come to, and keeps the trace meanwhile.
func (r *run) follow(results <-chan outcome) {
	trace, beat := time.NewTimer(traceAfter), time.NewTicker(look)
	defer trace.Stop()
	defer beat.Stop()
	var late, flush <-chan time.Time
	if !r.until.IsZero() {
		timer := time.NewTimer(time.Until(r.until))
		defer timer.Stop()
		late = timer.C
	}
	for open := len(r.calls); open > 0; {
		select {
		case o := <-results:
			open--
			r.outcome(o)
		case <-trace.C:
			r.warn(r.mark())
			r.flush()
		case reply := <-r.trace:
			reply <- r.mark()
		case <-r.news:
			if r.full() {
				r.flush()
			} else if flush == nil && r.traced {
				flush = time.After(gatherFor)
			}
		case <-flush:
			flush = nil
			r.flush()
		case <-beat.C:
			r.warn(r.stands())
		case <-late:
			r.giveUp()
			return
		case <-r.stopped:
			r.lost = true
		}
		if r.lost {
			return
		}
	}
}

// outcome takes what one call has come to.
func (r *run) outcome(o outcome) {
	if o.asks != nil {
		o.raw = r.ask(o.asks)
	}
	if o.raw != nil {
		o.call.ended = true
		r.say(o.raw)
	}
}

// giveUp ends what has not ended in time.
func (r *run) giveUp() {
	r.asks = nil
	why := failure(phaseToolCall, "the server did not answer within the time it has (tool_timeout_sec, or the function's own limit)")
	for _, c := range r.calls {
		if !c.ended {
			r.say(wire.ErrorResponse(c.id, why))
		}
	}
}

// say takes an event for the log.
func (r *run) say(raw []byte) {
	if len(raw) > session.MaxBatchBytes {
		if raw = r.tooLarge(raw); raw == nil {
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shut {
		return
	}
	r.said = append(r.said, raw)
	r.size += len(raw)
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// tooLarge is what is said in the place of an event that the log does not take: an
// error for an answer, nothing for what was said along the way.
func (r *run) tooLarge(raw []byte) []byte {
	m, err := wire.Parse(raw)
	if err != nil || m.Kind != wire.Response {
		r.warn(session.Errorf(session.TooLarge, "a notification of the server was left out: it has %d bytes", len(raw)))
		return nil
	}
	return wire.ErrorResponse(m.ID, failure(phaseToolCall, "the answer is larger than the log takes"))
}

// full says that more has been said than one write takes.
func (r *run) full() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.said) >= mostEvents || r.size >= mostBytes
}

// drain takes out what was said. Nothing is said any more after the last time.
func (r *run) drain(last bool) [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	said := r.said
	r.said, r.size, r.shut = nil, 0, r.shut || last
	return said
}

// mark puts the item that says who executes the request.
func (r *run) mark() error {
	if r.traced || r.lost {
		return nil
	}
	it := r.item()
	put, err := r.k.Store.PutItem(r.ctx, it)
	if err == nil && !put {
		// One whose answer was lost. There is no other: the stream's name is new.
		put = true
	}
	r.traced, r.renewed = put, time.Now()
	return err
}

// item is what stands in the store while the request is executed.
func (r *run) item() session.Item {
	now := time.Now()
	return session.Item{
		Box: r.address.Box, ID: r.address.Stream, State: session.Taken, Gen: r.gen, Round: r.round,
		Address: r.address, NotAfter: now.Add(lease), Created: now, Base: r.base,
	}
}

// stands sees to the item: it is read, or, when that is due, renewed.
func (r *run) stands() error {
	if !r.traced {
		return nil
	}
	if time.Since(r.renewed) >= renew-look/2 {
		return r.renew()
	}
	it, err := r.k.Store.Item(r.ctx, r.address.Box, r.address.Stream)
	if errors.Is(err, session.NotFound) || err == nil && it.Gen != r.gen {
		r.lost, err = true, nil
	}
	return err
}

// renew says that the request is still executed. If somebody has ended it, that is
// the end.
func (r *run) renew() error {
	it := r.item()
	swapped, err := r.k.Store.SwapItem(r.ctx, it, it)
	if err == nil {
		r.renewed, r.lost = time.Now(), !swapped
	}
	return err
}

// flush writes what was said. Before it there is a trace, so that who has got any of
// it gets the rest.
func (r *run) flush() {
	if err := r.mark(); err != nil {
		r.warn(err)
		return // what was said waits for the next time
	}
	r.writeAll(r.drain(false), false)
}

// writeAll writes events, in as many writes as it takes, the last of them the end with
// final. It keeps the lease meanwhile: each event may have to be sent to a connection,
// one after the other.
func (r *run) writeAll(events [][]byte, final bool) {
	for len(events) > 0 && !r.lost {
		n := r.fits(events)
		r.write(events[:n], final && n == len(events))
		events = events[n:]
		if len(events) > 0 && r.traced && !r.parked && time.Since(r.renewed) >= renew {
			r.warn(r.renew())
		}
	}
}

// fits is how many of these events go into one write.
func (r *run) fits(events [][]byte) int {
	most, size := mostEvents, 0
	if r.address.Conn != "" {
		most = mostPushed
	}
	for i, e := range events {
		if size += len(e); i > 0 && (i == most || size > mostBytes) {
			return i
		}
	}
	return len(events)
}

// write appends events, for as long as it takes: what a server has said is not said
// again.
func (r *run) write(events [][]byte, final bool) {
	b := session.Batch{
		Session: r.address.Session, Stream: r.address.Stream, First: r.base + 1, Final: final, Events: events,
		Expires: time.Now().Add(r.k.EventAge),
	}
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := r.k.out.Append(r.ctx, r.address, b)
		switch {
		case err == nil:
			r.base = b.Last()
			r.shown.publish(b)
			return
		case !errors.Is(err, session.Unavailable):
			r.lost = true // the stream has its end
			if !errors.Is(err, session.Conflict) {
				r.warn(err)
			}
			return
		}
		if !r.until.IsZero() && time.Now().After(r.until.Add(spare/2)) {
			r.lost = true // whoever finds the lease run out ends it
			r.warn(err)
			return
		}
		time.Sleep(pause)
	}
}

// finish writes the end, or suspends the request.
func (r *run) finish() {
	if len(r.asks) > 0 && !r.lost {
		r.suspend()
	}
	said := r.drain(true)
	if r.fits(said) < len(said) && !r.lost {
		r.warn(r.mark())
	}
	r.writeAll(said, true)
	if r.traced && !r.parked && !r.lost {
		r.warn(r.k.Store.DeleteItem(r.ctx, r.address.Box, r.address.Stream, r.gen))
	}
}

// wait closes the connections of the calls. One whose handler does not notice is left
// behind.
func (r *run) wait() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for _, c := range r.calls {
			c.close()
		}
	}()
	for _, c := range r.calls {
		c.cancel()
	}
	timer := time.NewTimer(unwind)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C:
		r.k.Log.WarnContext(r.ctx, "handler does not end", "server", r.in.record.Server, "session_id", r.address.Session, "stream", r.address.Stream)
	}
}

func (r *run) warn(err error) {
	if err != nil {
		r.k.Log.WarnContext(r.ctx, "executing a request meets trouble", "server", r.in.record.Server,
			"session_id", r.address.Session, "stream", r.address.Stream, "error", err)
	}
}

// Watch implements host.InlineTracker.
func (r *run) Watch(ctx context.Context, after session.Index, until time.Time) (page session.Page, ok bool, err error) {
	return r.shown.watch(ctx, after, until, r.over)
}

// Held says that the request is executed here; see host.InlineTracker.
func (r *run) Held() bool { return r.running.Load() }

// Check implements host.Tracker: it sees to the trace.
func (r *run) Check(ctx context.Context) (host.Status, error) {
	reply := make(chan error, 1)
	select {
	case r.trace <- reply:
		if err := <-reply; err != nil {
			return host.Status{}, err
		}
	case <-r.over: // its end is in the log, or it is suspended
		w := watch{r.k, r.in.record, r.address.Box, r.address.Stream}
		return w.Check(ctx)
	case <-ctx.Done():
		return host.Status{}, ctx.Err()
	}
	return host.Status{Accepted: true, Next: time.Now().Add(lookAfter)}, nil
}

// The error phases that a client is told of, as those of package box.
const (
	phaseUnavailable = "box_unavailable"
	phaseInit        = "mcp_init"
	phaseRuntime     = "runtime"
	phaseToolCall    = "tool_call"
)

// failure is an error that a client gets in the place of an answer.
func failure(phase, detail string) *wire.Error {
	return &wire.Error{Code: wire.CodeInternal, Message: phase + ": " + detail, Data: map[string]any{"phase": phase}}
}

// merged is a message or a batch again.
func merged(raws [][]byte) []byte {
	if len(raws) == 1 {
		return raws[0]
	}
	return slices.Concat([]byte{'['}, bytes.Join(raws, []byte{','}), []byte{']'})
}

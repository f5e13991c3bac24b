package native

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

const (
	// traceAfter is when the run, at the latest, writes an item for a request that has not ended.
	// Earlier events go into the log together with the item, or with the answer.
	traceAfter = time.Second
	// gatherFor is how long the events after traceAfter are gathered for one write.
	gatherFor = 100 * time.Millisecond
	// lease is how long a run owns its item, and renew how often it writes the item again. look is
	// how often it reads the item: a client may have cancelled through another instance.
	lease = 30 * time.Second
	renew = 10 * time.Second
	look  = 2 * time.Second
	// spare is how long before its deadline an instance gives up its runs.
	spare = 5 * time.Second
	// unwind is how long a handler may take to notice that it was stopped.
	unwind = time.Second
)

// These limit one write. They must be below the limits of the log, so that the responses of a
// batch always fit.
const (
	mostEvents = storage.MaxBatchEvents / 2
	mostBytes  = 4 << 20
	mostPushed = 50 // in place of mostEvents, if events are also sent to a connection
)

// run executes the message of one delivery, or goes on with it after its client has answered or a pause
// is over. While it lasts, nothing else writes to the request's stream. The goroutine that calls the
// method execute owns all fields. The author's handlers run in other goroutines, and use only the
// field said.
type run struct {
	k       *Backend
	ctx     context.Context // the invocation's context, without its cancellation
	in      *environment
	address storage.Address
	ended   func()

	calls   []*call
	round   int
	base    storage.Index // index of the last event in the log
	start   storage.Index // the value of base when the run began
	claim   claim
	lost    bool      // another instance has ended the request, or may end it
	parked  bool      // the item is suspended
	until   time.Time // when the run gives the request up; zero: never
	asks    []*asking
	trace   chan chan error // Check sends a channel; the run writes its claim, and puts the error into that channel
	stopped context.Context // has ended: the request was cancelled
	stop    context.CancelCauseFunc
	over    chan struct{} // closed: the run has ended

	said  *outbox
	shown *shown // events in the log, for a request that waits in this process
}

// claim is the item in the store that says that this run executes the request.
type claim struct {
	gen     storage.Generation // names the run
	put     bool               // the store has the item
	renewed time.Time          // when it was written last
}

// newRun makes the run of a delivery. ctx is the context of the invocation. The run goes on
// when ctx ends, because the waiting client may have gone. The deadline of ctx bounds the run.
func (k *Backend) newRun(ctx context.Context, a storage.Address, s storage.Session, h Hosted) *run {
	r := &run{
		k: k, ctx: context.WithoutCancel(ctx), address: a,
		in:    &environment{k: k, record: s, server: h, extra: extraOf(s, headerOf(ctx))},
		claim: claim{gen: storage.Generation(rand.Int64N(1<<52) + 1)},
		trace: make(chan chan error), over: make(chan struct{}),
		said: newOutbox(), shown: newShown(),
	}
	r.stopped, r.stop = context.WithCancelCause(r.ctx)
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

// enter registers the run with its Backend, and makes the invocation of ctx last until the run has
// ended. Call it before execute.
func (r *run) enter(ctx context.Context) {
	r.ended = sync.OnceFunc(begun(ctx))
	r.k.mu.Lock()
	defer r.k.mu.Unlock()
	r.k.running[r.address.Stream] = r
}

// take adds a call for each request among the messages. The argument later says that the server got
// the requests before, and asked its client or paused.
func (r *run) take(msgs []wire.Message, later bool) {
	for _, m := range msgs {
		if m.Kind == wire.Request {
			r.calls = append(r.calls, &call{r: r, id: m.ID, m: m, later: later})
		}
	}
}

// execute executes the calls until each has a response, needs answers of its client, or pauses.
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

// leave makes the Backend forget the run. If all handlers have returned, the invocation may end; see
// enter.
func (r *run) leave() {
	r.k.mu.Lock()
	delete(r.k.running, r.address.Stream)
	r.k.mu.Unlock()
	close(r.over)
	if !slices.ContainsFunc(r.calls, func(c *call) bool { return !c.answered.Load() }) {
		r.ended()
	}
}

// follow collects the outcomes of the calls, and renews the claim meanwhile.
func (r *run) follow(results <-chan outcome) {
	trace, beat := time.After(traceAfter), time.NewTicker(look)
	defer beat.Stop()
	var late, flush <-chan time.Time
	if !r.until.IsZero() {
		late = time.After(time.Until(r.until))
	}
	for open := len(r.calls); open > 0; {
		select {
		case o := <-results:
			open--
			r.outcome(o)
		case <-trace:
			r.warn(r.mark())
			r.flush()
		case reply := <-r.trace:
			reply <- r.mark()
		case <-r.said.news:
			if r.said.pressing() {
				r.flush()
			} else if flush == nil && r.claim.put {
				flush = time.After(gatherFor)
			}
		case <-flush:
			flush = nil
			r.flush()
		case <-beat.C:
			r.warn(r.stands())
			if r.said.pressing() { // an earlier write has failed
				r.flush()
			}
		case <-late:
			r.giveUp()
			return
		case <-r.stopped.Done():
			r.lost = true
		}
		if r.lost {
			return
		}
	}
}

// outcome adds the response of a call to the outbox, or records that the call goes on later.
func (r *run) outcome(o outcome) {
	if o.asks != nil {
		o.raw = r.ask(o.asks)
	}
	if o.raw != nil {
		o.call.ended = true
		r.say(o.raw)
	}
}

// giveUp ends the calls that have not ended in time.
func (r *run) giveUp() {
	r.asks = nil
	why := failure(r.in.record.Server, phaseToolCall, "it did not answer within the time it has (tool_timeout_sec, or the function's own limit)")
	for _, c := range r.calls {
		if !c.ended {
			r.say(wire.ErrorResponse(c.id, why))
		}
	}
}

func (r *run) say(raw []byte) {
	if len(raw) > storage.MaxBatchBytes {
		if raw = r.tooLarge(raw); raw == nil {
			return
		}
	}
	r.said.add(raw)
}

// tooLarge returns what takes the place of an event that is too large for the log: an error
// for an answer, nil for a notification.
func (r *run) tooLarge(raw []byte) []byte {
	m, err := wire.Parse(raw)
	if err != nil || m.Kind != wire.Response {
		r.warn(storage.Errorf(storage.TooLarge, "a notification of the server was left out: it has %d bytes", len(raw)))
		return nil
	}
	return wire.ErrorResponse(m.ID, failure(r.in.record.Server, phaseToolCall, fmt.Sprintf("the answer has %d bytes, over the limit of %d", len(raw), storage.MaxBatchBytes)))
}

// mark writes the item of the claim, if the store does not have it. If the session has ended
// meanwhile, mark ends the request, because the instance that ended the session may have found
// no item.
func (r *run) mark() error {
	if r.claim.put || r.lost {
		return nil
	}
	it := r.item()
	// If the item is there already, an earlier try has put it: the stream's name is new, so no other
	// instance can have done so.
	if _, err := r.k.Store.PutItem(r.ctx, it); err != nil {
		return err
	}
	put := time.Now()
	s, _, err := r.k.Store.Load(r.ctx, r.address.Session, "")
	if errors.Is(err, storage.NotFound) || err == nil && s.State == storage.Ended {
		r.lost = true
		return r.k.end(r.ctx, it, sessionEnded(it))
	}
	if err == nil {
		r.claim.put, r.claim.renewed = true, put
	}
	return err
}

func (r *run) item() storage.Item {
	now := time.Now()
	it := storage.Item{
		Box: r.address.Box, ID: r.address.Stream, State: storage.Taken, Gen: r.claim.gen, Round: r.round,
		Address: r.address, NotAfter: now.Add(lease), Created: now, Base: r.base,
	}
	if n, ok := r.said.noted(int(r.base - r.start)); ok {
		it.Raw, it.Base = n.raw, r.start+storage.Index(n.at)
	}
	return it
}

// stands finds out whether the claim is still valid: it reads the item, or renews the claim if
// that is due. If another instance has the item, the run is lost.
func (r *run) stands() error {
	if !r.claim.put {
		return nil
	}
	if time.Since(r.claim.renewed) >= renew-look/2 {
		return r.renew()
	}
	it, err := r.k.Store.Item(r.ctx, r.address.Box, r.address.Stream)
	if errors.Is(err, storage.NotFound) || err == nil && it.Gen != r.claim.gen {
		r.lost, err = true, nil
	}
	return err
}

// renew writes the item again. The run is lost if another instance has ended the request.
func (r *run) renew() error {
	it := r.item()
	swapped, err := r.k.Store.SwapItem(r.ctx, it, it)
	if err == nil {
		r.claim.renewed, r.lost = time.Now(), !swapped
	}
	return err
}

// flush writes the request's item and then the waiting events: once a client has some events of a
// request, another instance must be able to end the request.
func (r *run) flush() {
	if err := r.mark(); err != nil {
		r.warn(err)
		return // the events wait for the next flush
	}
	r.writeAll(r.said.drain(false), false)
}

// writeAll writes events, in as many writes as they need. If final is true, the last write
// ends the stream. writeAll renews the claim between two writes, because a write also sends
// each event to the client's connection, which may take long.
func (r *run) writeAll(events [][]byte, final bool) {
	for len(events) > 0 && !r.lost {
		n := r.fits(events)
		r.write(events[:n], final && n == len(events))
		events = events[n:]
		if len(events) > 0 && r.claim.put && !r.parked && time.Since(r.claim.renewed) >= renew {
			r.warn(r.renew())
		}
	}
}

// fits returns how many of the events go into one write.
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

// write appends events to the log. While the store is unavailable it tries again, until some
// time after r.until: this run has the only copy of the events.
func (r *run) write(events [][]byte, final bool) {
	b := storage.Batch{
		Session: r.address.Session, Stream: r.address.Stream, First: r.base + 1, Final: final, Events: events,
		Expires: time.Now().Add(r.k.EventAge),
	}
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		written, err := r.k.out.AppendShown(r.ctx, r.address, b)
		switch {
		case err == nil:
			r.base = b.Last()
			r.shown.publish(written)
			return
		case !errors.Is(err, storage.Unavailable):
			r.lost = true
			if !errors.Is(err, storage.Conflict) { // a conflict means that the stream has ended
				r.warn(err)
			}
			return
		}
		if !r.until.IsZero() && time.Now().After(r.until.Add(spare/2)) {
			r.lost = true // another instance will find that the lease has expired, and end the request
			r.warn(err)
			return
		}
		time.Sleep(pause)
	}
}

// finish ends the request in the log, or suspends it.
func (r *run) finish() {
	if len(r.asks) > 0 && !r.lost {
		r.suspend()
	}
	said := r.said.drain(true)
	if r.fits(said) < len(said) && !r.lost {
		r.warn(r.mark())
	}
	r.writeAll(said, true)
	if r.claim.put && !r.parked && !r.lost {
		r.warn(r.k.Store.DeleteItem(r.ctx, r.address.Box, r.address.Stream, r.claim.gen))
	}
}

// wait closes the connections of the calls and waits for their handlers, but no longer than unwind.
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
	select {
	case <-closed:
	case <-time.After(unwind):
		r.k.Log.WarnContext(r.ctx, "handler does not end", "server", r.in.record.Server, "session_id", r.address.Session, "stream", r.address.Stream)
	}
}

func (r *run) warn(err error) {
	if err != nil {
		r.k.Log.WarnContext(r.ctx, "failure while a request is executed", "server", r.in.record.Server,
			"session_id", r.address.Session, "stream", r.address.Stream, "error", err)
	}
}

// Watch implements sessions.InlineTracker.
func (r *run) Watch(ctx context.Context, after storage.Index, until time.Time) (page storage.Page, ok bool, err error) {
	return r.shown.watch(ctx, after, until, r.over)
}

// Held implements sessions.InlineTracker.
func (r *run) Held() bool {
	select {
	case <-r.over:
		return false
	default:
		return true
	}
}

// Check implements sessions.Tracker. It makes the run write its claim.
func (r *run) Check(ctx context.Context) (sessions.Status, error) {
	reply := make(chan error, 1)
	select {
	case r.trace <- reply:
		if err := <-reply; err != nil {
			return sessions.Status{}, err
		}
	case <-r.over: // the request has ended, or is suspended
		w := watch{r.k, r.in.record, r.address.Box, r.address.Stream}
		return w.Check(ctx)
	case <-ctx.Done():
		return sessions.Status{}, ctx.Err()
	}
	return sessions.Status{Accepted: true, Next: time.Now().Add(lookAfter)}, nil
}

// These phases say in errors where a request failed. Package box has the same.
const (
	phaseUnavailable = "box_unavailable"
	phaseInit        = "mcp_init"
	phaseRuntime     = "runtime"
	phaseToolCall    = "tool_call"
)

// failure makes an error that a client gets in the place of an answer. Package box makes its errors in
// the same form.
func failure(server, phase, detail string) *wire.Error {
	return &wire.Error{Code: wire.CodeInternal, Message: fmt.Sprintf("server %q: %s", server, detail), Data: map[string]any{"phase": phase, "server": server}}
}

// lost makes the error of a request that another instance ends in place of its run. If a run may have
// begun, the error says that it is not known whether the call was executed.
func lost(it storage.Item, phase, why string) *wire.Error {
	_, server := it.Box.Parts()
	if it.State == storage.Waiting && it.Round == 0 {
		return failure(server, phase, why)
	}
	e := failure(server, phase, why+"; whether the call was executed is not known")
	e.Code = wire.CodeOutcomeUnknown
	return e
}

func sessionEnded(it storage.Item) *wire.Error {
	return lost(it, phaseUnavailable, "the session has ended")
}

// merged returns a single message unchanged, and several messages as a batch.
func merged(raws [][]byte) []byte {
	if len(raws) == 1 {
		return raws[0]
	}
	return wire.Array(raws)
}

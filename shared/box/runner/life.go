package runner

import (
	"cmp"
	"context"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// life is the state of one call of Run. Each field uses only fields above it in this list, except
// links, which uses life.
type life struct {
	cfg        *Config     // [life.begin] changes some fields
	loop       *loop       // the goroutines, the timers, and the end of Run
	executing  *executing  // calls of the Executor
	links      *links      // connections to the host
	farewell   *farewell   // the [frame.Bye] before the box sleeps
	transfers  *transfers  // frames that are sent in parts
	queries    *queries    // requests about snapshots
	deliveries *deliveries // messages that the box executes or has executed
	outboxes   *outboxes   // events that the host does not have yet
	inflight   *inflight   // handles the messages for the box
	sleep      *sleep      // when the box sleeps, and when Run ends

	housekeeping alarm
	done         chan struct{} // closed when the loop ends
}

// newLife makes the state of a Run by the runner with this id. The function post makes the loop
// call a function; post returns false once done is closed.
func newLife(ctx context.Context, c Config, id string, done chan struct{}, post func(func()) bool) *life {
	dialing, cancel := context.WithCancel(context.WithoutCancel(ctx)) // goes on after the end of ctx, for up to Config.Flush
	l := &life{cfg: &c, loop: &loop{post: post}, done: done}
	l.executing = &executing{loop: l.loop, executor: c.Executor, calls: make(chan func(frame.Executor), 1)}
	l.links = &links{
		cfg: &c, loop: l.loop, executing: l.executing, life: l, runner: id, pass: c.Pass, gen: c.Gen, invited: c.Begin != nil,
		ctx: dialing, cancel: cancel, open: map[*link]bool{},
	}
	l.farewell = &farewell{cfg: &c, loop: l.loop, links: l.links}
	l.transfers = &transfers{links: l.links, byName: map[string]*transfer{}}
	l.queries = &queries{loop: l.loop, links: l.links, asking: map[int64]*query{}}
	l.deliveries = &deliveries{byID: map[storage.StreamID]*delivery{}, owed: map[storage.StreamID]*delivery{}}
	l.outboxes = &outboxes{cfg: &c, executing: l.executing, links: l.links, transfers: l.transfers, deliveries: l.deliveries, boxes: map[storage.ID]*outbox{}}
	l.inflight = &inflight{
		cfg: &c, loop: l.loop, executing: l.executing, links: l.links, transfers: l.transfers, deliveries: l.deliveries,
		outboxes: l.outboxes, farewell: l.farewell, late: map[storage.StreamID]*asked{},
	}
	l.sleep = &sleep{
		cfg: &c, loop: l.loop, executing: l.executing, links: l.links, farewell: l.farewell, transfers: l.transfers,
		queries: l.queries, deliveries: l.deliveries, outboxes: l.outboxes, inflight: l.inflight,
	}
	return l
}

func (l *life) start() {
	l.loop.wg.Go(l.executing.execute)
	l.loop.set(&l.links.giveUp, reconnectFor, l.links.abandon)
	l.links.connect()
	l.keepHouse()
	if l.cfg.Begin == nil {
		l.sleep.expectDeadline()
	}
}

// begin calls Config.Begin, on the goroutine that later calls the Executor.
func (l *life) begin(launch map[string]string) {
	l.executing.call(func(frame.Executor) {
		b, err := l.cfg.Begin(launch)
		l.executing.executor = b.Executor
		l.loop.post(func() {
			if err != nil {
				l.loop.finish(err)
				return
			}
			l.cfg.Digest, l.cfg.Idle, l.cfg.Longest = b.Digest, cmp.Or(b.Idle, l.cfg.Idle), b.Longest
			l.sleep.expectDeadline()
		})
	})
}

// stop ends all goroutines of Run, and drops events that are not sent.
func (l *life) stop() {
	if n := l.outboxes.unsent(); n > 0 {
		l.cfg.Log.Warn("output dropped", "events", n)
	}
	close(l.done) // releases the goroutines that wait for the loop
	l.links.endLinks()
	close(l.executing.calls)
	l.loop.wg.Wait()
}

func (l *life) frame(lk *link, f frame.Frame) {
	switch f := f.(type) {
	case frame.Welcome:
		l.links.welcomeCame(lk, f)
	case frame.Fenced:
		l.links.fenced(f)
	case frame.Nudge:
		l.inflight.nudge()
	case frame.Deliver:
		l.inflight.deliver(f)
	case frame.May:
		l.inflight.may(f)
	case frame.Pulled:
		l.inflight.pulled(f)
	case frame.Ack:
		l.outboxes.acked(f)
	case frame.ByeOK:
		l.farewell.byeTaken(f)
	case frame.Answer, frame.Stop, frame.Halt:
		// A runner that was started before its box was known has no process before its first
		// [frame.Welcome]: the frame is about a process of an earlier runner.
		if !l.links.invited {
			l.toExecutor(f)
		}
	case frame.Yield:
		l.sleep.yield()
	case frame.Drain:
		l.links.drain(time.Duration(min(max(f.In, 0), maxDrain.Milliseconds())) * time.Millisecond)
	case frame.PartOK:
		l.transfers.partTaken(f)
	case frame.Kept:
		l.queries.answered(f)
	} // a newer host may send a type that this version does not know
}

// toExecutor passes a frame about a process to the Executor.
func (l *life) toExecutor(f frame.Frame) {
	switch f := f.(type) {
	case frame.Answer:
		l.farewell.worked = true
		l.executing.call(func(e frame.Executor) { e.Answer(f.Session, f.Question, f.Payload) })
	case frame.Stop:
		l.executing.call(func(e frame.Executor) { e.StopSession(f.Session) })
	case frame.Halt:
		l.executing.call(func(e frame.Executor) { e.Halt(f) })
		if f.Session == "" {
			l.sleep.halted = l.inflight.delivered + 1
			l.sleep.askNow()
		}
	}
}

// These limit for how long deliveries and outboxes are kept after their end.
const (
	idMemory     = 15 * time.Minute // longer than a message can be on its way
	houseKeeping = time.Minute
)

// keepHouse runs every minute and forgets deliveries and outboxes that have ended.
func (l *life) keepHouse() {
	old := time.Now().Add(-idMemory)
	l.deliveries.forgetDeliveries(old)
	l.outboxes.forgetOutboxes(old)
	l.loop.set(&l.housekeeping, houseKeeping, l.keepHouse)
}

// resume continues after a [frame.Welcome]. The argument moved is true if the connection is new,
// and fresh if the generation is new.
func (l *life) resume(moved, fresh bool) {
	l.inflight.resumeInflight(moved, fresh)
	l.outboxes.resumeOutboxes(moved, fresh)
	if moved {
		l.transfers.resumeTransfers()
	}
	l.queries.resumeQueries()
	l.sleep.watchIdle()
}

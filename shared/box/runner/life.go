package runner

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// life is the state of a Run. Each part has one job. The loop of Run drives the parts
// with frames from the host, results from the Executor, and timers.
type life struct {
	*core
	links      *links      // connections to the host
	transfers  *transfers  // frames that are sent in parts
	deliveries *deliveries // messages that the box was given, and those that it has yet to end
	outboxes   *outboxes   // events on their way to the host
	inflight   *inflight   // messages on their way to the box
	queries    *queries    // questions about snapshots
	sleep      *sleep      // when the box sleeps, and when Run ends

	housekeeping alarm
	done         chan struct{} // closed when the loop ends
}

// newLife makes the state of a Run. id is the runner's. post makes the loop call a function;
// it returns false once done is closed.
func newLife(ctx context.Context, cfg Config, id string, done chan struct{}, post func(func()) bool) *life {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx)) // outlives ctx by the flush
	c := &core{Config: cfg, post: post, runner: id, ctx: own, cancel: cancel, gen: cfg.Gen}
	c.calls = make(chan func(), 1)
	l := &life{core: c, done: done}
	l.links = &links{core: c, life: l, open: map[*link]bool{}}
	l.transfers = &transfers{core: c, links: l.links, byName: map[string]*transfer{}}
	l.deliveries = newDeliveries()
	l.outboxes = &outboxes{core: c, links: l.links, transfers: l.transfers, deliveries: l.deliveries, boxes: map[storage.ID]*outbox{}}
	l.sleep = &sleep{core: c, links: l.links, transfers: l.transfers, deliveries: l.deliveries, outboxes: l.outboxes}
	l.inflight = &inflight{
		core: c, links: l.links, transfers: l.transfers, deliveries: l.deliveries, outboxes: l.outboxes, sleep: l.sleep,
		late: map[storage.StreamID]*asked{},
	}
	l.queries = &queries{core: c, links: l.links, asking: map[int64]*query{}}
	l.sleep.inflight, l.sleep.queries = l.inflight, l.queries
	return l
}

func (l *life) start() {
	l.spawn(l.execute)
	l.links.beginLinks()
	l.keepHouse()
	if l.Begin == nil {
		l.sleep.expectDeadline()
	}
}

// begin makes the Executor of an invited runner, before any of its methods is called.
func (l *life) begin(launch map[string]string) {
	l.call(func() {
		b, err := l.Begin(launch)
		if err == nil {
			l.Executor = b.Executor // only this goroutine uses it
		}
		l.post(func() {
			if err != nil {
				l.finish(err)
				return
			}
			l.Digest, l.Idle, l.Longest = b.Digest, cmp.Or(b.Idle, l.Idle), b.Longest
			l.sleep.expectDeadline()
		})
	})
}

// stop ends everything that Run began.
func (l *life) stop() {
	if n := l.outboxes.unsent(); n > 0 {
		l.Log.Warn("output dropped", "events", n)
	}
	l.outboxes.drop()
	close(l.done) // releases the goroutines that wait for the loop
	l.links.endLinks()
	l.cancel()
	close(l.calls)
	l.wg.Wait()
}

// received handles a message of a connection, or the error that ended it.
func (l *life) received(lk *link, data []byte, err error) {
	if lk.dead {
		return
	}
	if err != nil {
		l.links.cut(lk, err)
		return
	}
	if len(data) == 0 {
		return // the gateway may pass on a function's empty answer as an empty message
	}
	f, err := frame.Decode(data)
	if part, ok := f.(frame.Part); ok {
		if data, _, err = lk.parts.Add(part); data == nil && err == nil {
			return
		}
		if err != nil {
			// This end holds incomplete parts until the connection closes, so begin a new
			// connection.
			l.links.cut(lk, err)
			return
		}
		f, err = frame.Decode(data)
	}
	if err != nil {
		l.unreadable(lk, len(data), err)
		return
	}
	l.frame(lk, f)
}

// unreadable skips a message that is no frame, for example the gateway's own message about
// a failed function. If the host has another version, every frame is unreadable;
// unreadable logs that once for a connection.
func (l *life) unreadable(lk *link, size int, err error) {
	var version *frame.VersionError
	if errors.As(err, &version) {
		if lk.foreign {
			return
		}
		lk.foreign = true
	}
	l.Log.Warn("message is no relay frame", "link", lk.no, "bytes", size, "error", err)
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
		l.sleep.byeTaken(f)
	case frame.Answer, frame.Stop, frame.Halt:
		// An invited runner may get these frames before its welcome. It has no process
		// yet, so the frames are about processes of the generation before.
		if l.Begin == nil || l.links.begun {
			l.toExecutor(f)
		}
	case frame.Drain:
		l.links.drain(time.Duration(min(max(f.In, 0), maxDrain.Milliseconds())) * time.Millisecond)
	case frame.PartOK:
		l.transfers.partTaken(f)
	case frame.Kept:
		l.queries.answered(f)
	default:
		// A newer host may send a type that this version does not know. That is no
		// error.
	}
}

// toExecutor handles a frame that is about a process.
func (l *life) toExecutor(f frame.Frame) {
	switch f := f.(type) {
	case frame.Answer:
		s, question, raw := f.Session, f.Question, f.Payload
		l.inflight.worked = true
		l.call(func() { l.Executor.Answer(s, question, raw) })
	case frame.Stop:
		s := f.Session
		l.call(func() { l.Executor.StopSession(s) })
	case frame.Halt:
		l.halt(f)
	}
}

// halt stops processes. If it stops all, the box sleeps without a wait for Idle.
func (l *life) halt(f frame.Halt) {
	within := time.Duration(min(max(f.In, 0), maxHalt.Milliseconds())) * time.Millisecond
	l.call(func() { l.Executor.Halt(f.Session, f.By, within) })
	if f.Session == "" {
		l.sleep.hurry()
	}
}

// maxHalt is the longest time that calls in flight get to end before their processes are
// stopped.
const maxHalt = time.Hour

// These limit the memory of deliveries and outboxes that have ended.
const (
	idMemory     = 15 * time.Minute // longer than a deliver is valid
	houseKeeping = time.Minute
)

// keepHouse runs every minute and forgets deliveries and outboxes that have ended.
func (l *life) keepHouse() {
	old := time.Now().Add(-idMemory)
	l.deliveries.forgetDeliveries(old)
	l.outboxes.forgetOutboxes(old)
	l.set(&l.housekeeping, houseKeeping, l.keepHouse)
}

// resume continues after a welcome, where the last connection or the last bye stopped.
// moved says that the connection is new, fresh that the generation is new.
func (l *life) resume(moved, fresh bool) {
	if moved {
		l.outboxes.loose = false
	}
	kept := l.links.kept
	l.links.kept = nil
	for _, data := range kept {
		l.links.sendKept(data)
	}
	l.inflight.resumeInflight(moved, fresh)
	l.outboxes.resumeOutboxes(moved, fresh)
	l.queries.resumeQueries()
	l.sleep.watchIdle()
}

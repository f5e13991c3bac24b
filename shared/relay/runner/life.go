package runner

import (
	"context"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// life is a Run: its parts, each with one job. The loop of Run drives them with what
// comes from the host, from the Executor and from timers.
type life struct {
	*core
	links      *links      // connections to the host
	transfers  *transfers  // frames that are sent in parts
	deliveries *deliveries // what the box was given, and owes an end for
	outboxes   *outboxes   // events on their way to the host
	inflight   *inflight   // messages on their way to the box
	queries    *queries    // questions about snapshots
	sleep      *sleep      // when the box sleeps, and when Run ends

	housekeeping alarm
}

func newLife(ctx context.Context, r *Runner) *life {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx)) // outlives ctx by the flush
	c := &core{Config: r.cfg, loop: r, runner: string(session.NewID()), ctx: own, cancel: cancel, gen: r.cfg.Gen}
	c.calls = make(chan func(), 1)
	l := &life{core: c}
	l.links = &links{core: c, user: l, open: map[*link]bool{}}
	l.transfers = &transfers{core: c, links: l.links, byName: map[string]*transfer{}}
	l.deliveries = newDeliveries()
	l.outboxes = &outboxes{core: c, links: l.links, transfers: l.transfers, deliveries: l.deliveries, boxes: map[session.ID]*outbox{}}
	l.sleep = &sleep{core: c, links: l.links, transfers: l.transfers, deliveries: l.deliveries, outboxes: l.outboxes}
	l.inflight = &inflight{
		core: c, links: l.links, transfers: l.transfers, deliveries: l.deliveries, outboxes: l.outboxes, sleep: l.sleep,
		late: map[session.StreamID]*asked{},
	}
	l.queries = &queries{core: c, links: l.links, asking: map[int64]*query{}}
	l.sleep.inflight, l.sleep.queries = l.inflight, l.queries
	return l
}

func (l *life) start() {
	l.wg.Go(l.execute)
	l.links.beginLinks()
	l.keepHouse()
}

// stop ends everything that Run began.
func (l *life) stop() {
	if n := l.outboxes.unsent(); n > 0 {
		l.Log.Warn("output dropped", "events", n)
	}
	close(l.loop.done) // lets go of whoever waits for the loop
	l.links.endLinks()
	l.cancel()
	close(l.calls)
	l.wg.Wait()
}

// received takes a message of a connection, or its end.
func (l *life) received(lk *link, data []byte, err error) {
	if lk.dead {
		return
	}
	if err != nil {
		l.links.cut(lk, err)
		return
	}
	if len(data) == 0 {
		return // a gateway may give a function's empty answer as an empty message
	}
	f, err := frame.Decode(data)
	if part, ok := f.(frame.Part); ok {
		if data, _, err = lk.parts.Add(part); data == nil && err == nil {
			return
		}
		if err != nil {
			// Its parts are held until the connection closes: begin anew.
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

// unreadable passes over what is no frame, such as the gateway's own word for a
// function that failed. A host of another version says all it says in vain: that
// is told once.
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
	case frame.Answer:
		s, question, raw := f.Session, f.Question, f.Payload
		l.inflight.worked = true
		l.call(func() { l.Executor.Answer(s, question, raw) })
	case frame.Stop:
		s := f.Session
		l.call(func() { l.Executor.StopSession(s) })
	case frame.Drain:
		l.links.drain(time.Duration(min(max(f.In, 0), maxDrain.Milliseconds())) * time.Millisecond)
	case frame.PartOK:
		l.transfers.partTaken(f)
	case frame.Kept:
		l.queries.answered(f)
	default:
		// A type this version does not know is from a newer host: not an error.
	}
}

// Memory of what is over.
const (
	idMemory     = 15 * time.Minute // longer than a deliver is valid
	houseKeeping = time.Minute
)

// keepHouse forgets, from time to time, what nobody can ask for any more.
func (l *life) keepHouse() {
	old := time.Now().Add(-idMemory)
	l.deliveries.forgetDeliveries(old)
	l.outboxes.forgetOutboxes(old)
	l.set(&l.housekeeping, houseKeeping, l.keepHouse)
}

// resume goes on after a welcome where the last connection or the last bye
// stopped.
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

// cutAsleep and loosenAll are for links, which knows nothing of the other parts.
func (l *life) cutAsleep() { l.sleep.cutAsleep() }

func (l *life) loosenAll() { l.outboxes.loosenAll() }

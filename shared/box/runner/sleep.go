package runner

import (
	"fmt"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

// This file is about how the box falls asleep. The runner says bye when it has nothing to
// do, and executes nothing after it. A message that comes later makes the runner say hello
// again.

const (
	byeAgain = 2 * time.Second
	byeTries = 5 // then the connection is given up
)

// sleep decides when the box falls asleep and when Run ends. It sends bye once no part of
// the life has any work under way.
type sleep struct {
	*core
	links      *links
	transfers  *transfers
	deliveries *deliveries
	outboxes   *outboxes
	inflight   *inflight
	queries    *queries

	halted   int  // 1 + inflight.delivered when all processes were stopped; see hasty
	asking   bool // the Executor is being asked
	watching bool // sleep is asking the Executor since when the box is idle, or will ask when the alarm idle fires
	idle     alarm
	idleFor  time.Duration // how long the box had no work at the last bye
	byes     int           // byes without an answer
	byeDue   alarm
	ending   alarm
	accept   alarm // ends refusing
	old      bool  // half of the time until Deadline is over
	aging    alarm
	drainDue alarm
	retired  bool // Retire was called
}

// watchIdle asks the Executor whether the box may sleep. It repeats the question as long
// as the runner is in stage up.
func (sl *sleep) watchIdle() {
	if sl.stage != up || sl.watching {
		return
	}
	sl.watching, sl.asking = true, true
	before := sl.inflight.delivered
	sl.call(func() {
		since, ok := sl.Executor.IdleSince()
		sl.post(func() { sl.idleSince(since, ok && before == sl.inflight.delivered) })
	})
}

func (sl *sleep) idleSince(since time.Time, ok bool) {
	sl.asking = false
	if sl.stage != up {
		sl.watching = false
		return
	}
	left := sl.Idle - time.Since(since)
	if sl.closing || sl.hasty() || sl.draining || sl.old {
		left = 0
	}
	if ok && left <= 0 && sl.quiet() {
		sl.idleFor = max(time.Since(since), 0)
		sl.bye()
		return
	}
	again := left
	if !ok || left <= 0 {
		again = min(sl.Idle/4, frame.MostUnasked)
	}
	if sl.hasty() {
		again = frame.UnaskedHasty
	}
	if sl.closing || sl.draining {
		again = frame.UnaskedClosing
	}
	sl.set(&sl.idle, again, func() {
		sl.watching = false
		sl.watchIdle()
	})
}

// hasty reports whether all processes were stopped and nothing was delivered since. The
// box then sleeps as soon as it has nothing to do.
func (sl *sleep) hasty() bool { return sl.halted == sl.inflight.delivered+1 }

func (sl *sleep) hurry() {
	sl.halted = sl.inflight.delivered + 1
	sl.askNow()
}

// askNow asks the Executor now instead of later whether the box may sleep.
func (sl *sleep) askNow() {
	if sl.watching && !sl.asking {
		sl.idle.stop()
		sl.watching = false
		sl.watchIdle()
	}
}

// quiet reports whether this end has nothing under way with the host. An open pull does
// not hold up a runner that refuses messages, because it will not execute what comes.
func (sl *sleep) quiet() bool {
	return sl.links.linked() && sl.links.next == nil && !sl.links.dialing && !sl.links.live.greeting() && !sl.links.live.busy() &&
		len(sl.deliveries.owed) == 0 && (len(sl.inflight.late) == 0 || sl.refuses()) && sl.outboxes.unsent() == 0 && len(sl.transfers.byName) == 0 && len(sl.transfers.lining) == 0 && len(sl.queries.asking) == 0 && (!sl.inflight.pull.open || sl.refuses()) && len(sl.waiting) == 0
}

// bye begins the sleep: after it the runner executes nothing.
func (sl *sleep) bye() {
	sl.stage, sl.byes, sl.watching = parting, 0, false
	sl.idle.stop()
	sl.sayBye()
}

func (sl *sleep) sayBye() {
	if sl.stage != parting || sl.links.live == nil {
		return
	}
	if sl.byes == byeTries {
		sl.links.cut(sl.links.live, errSilent)
		return
	}
	sl.byes++
	sl.links.live.sendFirst(frame.Encode(frame.Bye{Sender: sl.sender(), Link: sl.no, Looks: !sl.inflight.worked, Idle: sl.idleFor.Milliseconds()}))
	sl.set(&sl.byeDue, byeAgain, sl.sayBye)
}

// byeTaken handles the host's answer to a bye: the box is asleep. The runner stays for
// Linger, in case a message was already on its way.
func (sl *sleep) byeTaken(f frame.ByeOK) {
	if sl.stage != parting || f.Link != sl.no {
		return
	}
	sl.stage = lingering
	sl.byeDue.stop()
	sl.Log.Info("asleep", "generation", sl.gen)
	sl.set(&sl.ending, sl.Linger, func() {
		if sl.stage == lingering {
			sl.finish(nil)
		}
	})
}

// wakeAgain sends hello again after a bye, on the same connection with a new number. The
// welcome tells whether the host had taken the bye.
func (sl *sleep) wakeAgain() {
	if sl.stage != parting && sl.stage != lingering || sl.closing || sl.retiring || sl.draining {
		return
	}
	sl.stage = rejoining
	sl.byeDue.stop()
	sl.ending.stop()
	if sl.links.live != nil {
		sl.links.hello(sl.links.live)
	}
}

// cutAsleep handles a connection that is lost after a bye without an answer. The runner
// does not repeat the bye. The hello on the next connection tells whether the host took
// it.
func (sl *sleep) cutAsleep() {
	if sl.stage == parting {
		sl.stage = rejoining
		sl.byeDue.stop()
	}
}

// drainSlack is the time that is left before Deadline when the last message ends, if that
// message took Longest. Its result and the bye still have to reach the host.
const drainSlack = 20 * time.Second

// expectDeadline prepares for the end of the runner's time. A runner whose time is too
// short for Longest drains after half of it: it may be cut off, but it does some work.
func (sl *sleep) expectDeadline() {
	if sl.Deadline.IsZero() {
		return
	}
	left := time.Until(sl.Deadline)
	sl.set(&sl.aging, left/2, func() {
		sl.old = true
		sl.askNow()
	})
	sl.set(&sl.drainDue, max(left-sl.Longest-drainSlack, left/2), sl.drain)
}

// drain ends the life before its Deadline: the runner finishes its requests and leaves new
// ones to its successor.
func (sl *sleep) drain() {
	sl.Log.Info("draining: the time of the box is almost over", "generation", sl.gen, "in_flight", sl.deliveries.running)
	sl.draining = true
	sl.askNow()
}

// retire begins to end the life because the host asks for it.
func (sl *sleep) retire() {
	if sl.Retire == nil || sl.retiring || sl.closing {
		return
	}
	sl.Log.Info("retiring: the server is configured differently by now", "generation", sl.gen, "in_flight", sl.deliveries.running)
	sl.retiring, sl.refusing = true, true
	sl.set(&sl.accept, frame.RefuseFor, func() {
		sl.refusing = false
		sl.inflight.startPull() // a nudge may have come in the meantime
	})
}

// tryRetire ends the life of a retiring runner as soon as it has nothing in flight.
func (sl *sleep) tryRetire() {
	if sl.retired || sl.stage != up || !sl.quiet() {
		return
	}
	sl.accept.stop()
	sl.retired, sl.refusing = true, true
	sl.Retire()
}

// closeDown begins to end the life because Run's ctx is done.
func (sl *sleep) closeDown(cause error) {
	sl.closing, sl.cause = true, cause
	sl.watching = false
	sl.idle.stop()
	sl.set(&sl.ending, sl.Flush, sl.closed)
}

// tryClose ends the life as soon as nothing is in flight. If there is a connection, it
// ends with a bye, which tells the host that nothing was lost.
func (sl *sleep) tryClose() {
	switch {
	case sl.stage == lingering:
		sl.finish(nil)
	case sl.stage == joining:
		sl.closed()
	case sl.quiet():
		sl.watchIdle()
	}
}

// closed ends the life without a bye.
func (sl *sleep) closed() {
	sl.finish(fmt.Errorf("the runner of box %s was stopped with %d requests in flight: %w", sl.Box, sl.deliveries.running, sl.cause))
}

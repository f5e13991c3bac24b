package runner

import (
	"fmt"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
)

// How the box falls asleep. The runner says bye when it has nothing to do, and executes
// nothing after it. A message that comes later makes the runner say hello again.

const (
	byeAgain = 2 * time.Second
	byeTries = 5 // then the connection is given up

	mostUnasked    = 30 * time.Second // the longest pause before a busy box is asked again
	unaskedClosing = 50 * time.Millisecond
)

// sleep decides when the box falls asleep and when Run ends. It says bye once no part
// of the life has anything under way.
type sleep struct {
	*core
	links      *links
	transfers  *transfers
	deliveries *deliveries
	outboxes   *outboxes
	inflight   *inflight
	queries    *queries

	watching bool // the Executor is being asked since when it is idle, or will be when the alarm idle rings
	idle     alarm
	byes     int // byes without an answer
	byeDue   alarm
	ending   alarm
}

// watchIdle asks the Executor whether the box may sleep, again and again while the box
// is up.
func (sl *sleep) watchIdle() {
	if sl.stage != up || sl.watching {
		return
	}
	sl.watching = true
	before := sl.inflight.delivered
	sl.call(func() {
		since, ok := sl.Executor.IdleSince()
		sl.post(func() { sl.idleSince(since, ok && before == sl.inflight.delivered) })
	})
}

func (sl *sleep) idleSince(since time.Time, ok bool) {
	if sl.stage != up {
		sl.watching = false
		return
	}
	left := sl.Idle - time.Since(since)
	if sl.closing {
		left = 0
	}
	if ok && left <= 0 && sl.quiet() {
		sl.bye()
		return
	}
	again := left
	if !ok || left <= 0 {
		again = min(sl.Idle/4, mostUnasked)
	}
	if sl.closing {
		again = unaskedClosing
	}
	sl.set(&sl.idle, again, func() {
		sl.watching = false
		sl.watchIdle()
	})
}

// quiet reports whether this end has nothing under way with the host. An open pull does
// not hold up a runner that is told to stop, because it will not execute what comes.
func (sl *sleep) quiet() bool {
	return sl.links.linked() && sl.links.next == nil && !sl.links.dialing && !sl.links.live.greeting() && !sl.links.live.busy() &&
		len(sl.deliveries.owed) == 0 && (len(sl.inflight.late) == 0 || sl.closing) && sl.outboxes.unsent() == 0 && len(sl.transfers.byName) == 0 && len(sl.transfers.lining) == 0 && len(sl.queries.asking) == 0 && (!sl.inflight.pull.open || sl.closing) && len(sl.waiting) == 0
}

// bye begins the sleep: from now on the runner executes nothing.
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
	sl.links.live.sendFirst(frame.Encode(frame.Bye{Sender: sl.sender(), Link: sl.no, Looks: !sl.inflight.worked}))
	sl.set(&sl.byeDue, byeAgain, sl.sayBye)
}

// byeTaken handles the host's answer to a bye: the box is asleep. The runner stays for
// Linger, in case a message was already under way to it.
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

// wakeAgain says hello again after a bye, on the same connection with a new number. The
// welcome tells whether the host had taken the bye.
func (sl *sleep) wakeAgain() {
	if sl.stage != parting && sl.stage != lingering || sl.closing {
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

// closeDown begins the end that Run's ctx asks for.
func (sl *sleep) closeDown(cause error) {
	sl.closing, sl.cause = true, cause
	sl.watching = false
	sl.idle.stop()
	sl.set(&sl.ending, sl.Flush, sl.closed)
}

// tryClose ends the life as soon as nothing is in flight. With a connection it does so
// by a bye, which tells the host that nothing was lost.
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

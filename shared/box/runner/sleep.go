package runner

import (
	"fmt"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

const (
	byeAgain = 2 * time.Second
	byeTries = 5 // after so many byes without an answer the connection is given up
)

// sleep decides when the box sleeps and when Run ends.
type sleep struct {
	cfg        *Config
	loop       *loop
	executing  *executing
	links      *links
	transfers  *transfers
	deliveries *deliveries
	outboxes   *outboxes
	inflight   *inflight
	queries    *queries
	farewell   *farewell

	halted   int  // inflight.delivered when all processes were last halted, plus one; 0 for never
	yielded  int  // inflight.delivered when the host last asked for memory, plus one; 0 for never
	asking   bool // the Executor was asked whether the box is idle, and has not answered
	watching bool // the Executor is being asked, or will be asked when the alarm idle fires
	idle     alarm
	old      bool // half of the time until Deadline has passed
	aging    alarm
	drainDue alarm
	retiring bool  // the host has asked the runner to retire
	accept   alarm // ends inflight.refusing if the runner cannot retire soon
	retired  bool  // Retire was called
	cause    error // the cause of Run's ctx, after ctx is done
	flush    alarm
}

// watchIdle asks the Executor whether the box may sleep, again and again while the runner is in
// phase up.
func (sl *sleep) watchIdle() {
	if sl.links.stage != up || sl.watching {
		return
	}
	sl.watching, sl.asking = true, true
	before := sl.inflight.delivered
	sl.executing.call(func(e frame.Executor) {
		since, ok := e.IdleSince()
		sl.loop.post(func() { sl.idleSince(since, ok && before == sl.inflight.delivered) })
	})
}

func (sl *sleep) idleSince(since time.Time, ok bool) {
	sl.asking = false
	if sl.links.stage != up {
		sl.watching = false
		return
	}
	left := sl.cfg.Idle - time.Since(since)
	if sl.yielded == sl.inflight.delivered+1 {
		left = min(left, frame.YieldAfter-time.Since(since))
	}
	if sl.inflight.closing || sl.hasty() || sl.inflight.draining || sl.old {
		left = 0
	}
	if ok && left <= 0 && sl.quiet() {
		sl.watching = false
		sl.idle.stop()
		sl.links.stage, sl.farewell.byes, sl.farewell.idle = parting, 0, max(time.Since(since), 0)
		sl.farewell.sayBye()
		return
	}
	switch {
	case sl.inflight.closing || sl.inflight.draining:
		left = frame.UnaskedClosing
	case sl.hasty():
		left = frame.UnaskedHasty
	case !ok || left <= 0:
		left = min(sl.cfg.Idle/4, frame.MostUnasked)
	}
	sl.loop.set(&sl.idle, left, func() {
		sl.watching = false
		sl.watchIdle()
	})
}

// hasty reports whether all processes were halted and no message was executed since.
func (sl *sleep) hasty() bool { return sl.halted == sl.inflight.delivered+1 }

// yield handles a [frame.Yield]: one idle process ends, and the box sleeps soon unless a message
// comes.
func (sl *sleep) yield() {
	sl.cfg.Log.Info("the host needs memory", "generation", sl.links.gen)
	sl.yielded = sl.inflight.delivered + 1
	if sl.cfg.Yield != nil {
		sl.executing.call(func(frame.Executor) { sl.cfg.Yield() })
	}
	sl.askNow()
}

// askNow asks the Executor at once whether the box may sleep, and not only when the alarm idle
// fires.
func (sl *sleep) askNow() {
	if sl.watching && !sl.asking {
		sl.idle.stop()
		sl.watching = false
		sl.watchIdle()
	}
}

// quiet reports whether nothing is open between this runner and the host. A pull and late messages
// count only if the runner executes new messages.
func (sl *sleep) quiet() bool {
	return sl.links.linked() && sl.links.next == nil && !sl.links.dialing && !sl.links.live.greeting() && !sl.links.live.busy() &&
		len(sl.deliveries.owed) == 0 && (len(sl.inflight.late) == 0 || sl.inflight.refuses()) && sl.outboxes.unsent() == 0 && len(sl.transfers.byName) == 0 && len(sl.transfers.waiting) == 0 && len(sl.queries.asking) == 0 && (!sl.inflight.pull.open || sl.inflight.refuses()) && len(sl.executing.waiting) == 0
}

// farewell sends [frame.Bye] to the host before the box sleeps. After a bye the runner executes
// nothing; it repeats the bye until the host answers. If a message comes meanwhile, the runner takes
// the bye back with a [frame.Hello].
type farewell struct {
	cfg   *Config
	loop  *loop
	links *links

	worked bool          // some message was neither an initialize nor a request for a list; see frame.Deliver.Looks
	idle   time.Duration // for how long the box had no work at the last [frame.Bye]
	byes   int           // how many byes were sent without an answer
	due    alarm
	linger alarm
}

func (fw *farewell) sayBye() {
	if fw.links.stage != parting || fw.links.live == nil {
		return
	}
	if fw.byes == byeTries {
		fw.links.cut(fw.links.live, errSilent)
		return
	}
	fw.byes++
	fw.links.live.sendFirst(frame.Encode(frame.Bye{Sender: fw.links.sender(), Link: fw.links.no, Looks: !fw.worked, Idle: fw.idle.Milliseconds()}))
	fw.loop.set(&fw.due, byeAgain, fw.sayBye)
}

// byeTaken handles the host's answer to a bye: the box now counts as asleep. The runner stays
// connected for Config.Linger.
func (fw *farewell) byeTaken(f frame.ByeOK) {
	if fw.links.stage != parting || f.Link != fw.links.no {
		return
	}
	fw.links.stage = lingering
	fw.due.stop()
	fw.cfg.Log.Info("asleep", "generation", fw.links.gen)
	fw.loop.set(&fw.linger, fw.cfg.Linger, func() {
		if fw.links.stage == lingering {
			fw.loop.finish(nil)
		}
	})
}

// takeBack takes a bye back, by a [frame.Hello] with a new number on the same connection.
func (fw *farewell) takeBack() {
	if fw.links.stage != parting && fw.links.stage != lingering {
		return
	}
	fw.links.stage = rejoining
	fw.due.stop()
	fw.linger.stop()
	if fw.links.live != nil {
		fw.links.hello(fw.links.live)
	}
}

// drainSlack is the time from the end of the longest message to Deadline. In that time the response
// and the bye must reach the host.
const drainSlack = 20 * time.Second

// expectDeadline sets the timers for the end of the runner's time. If the time is too short for a
// message that takes Longest, the runner drains after half of it. The end may then cut off a message.
func (sl *sleep) expectDeadline() {
	if sl.cfg.Deadline.IsZero() {
		return
	}
	left := time.Until(sl.cfg.Deadline)
	sl.loop.set(&sl.aging, left/2, func() {
		sl.old = true
		sl.askNow()
	})
	sl.loop.set(&sl.drainDue, max(left-sl.cfg.Longest-drainSlack, left/2), sl.drain)
}

// drain prepares for Deadline: the runner finishes its requests, and leaves new ones to the next
// runner.
func (sl *sleep) drain() {
	sl.cfg.Log.Info("draining: the time of the box is almost over", "generation", sl.links.gen, "in_flight", sl.deliveries.running())
	sl.inflight.draining = true
	sl.askNow()
}

// retire handles the host's request that the box end, because the server has another definition
// now.
func (sl *sleep) retire() {
	if sl.cfg.Retire == nil || sl.retiring || sl.inflight.closing {
		return
	}
	sl.cfg.Log.Info("retiring: the server is configured differently by now", "generation", sl.links.gen, "in_flight", sl.deliveries.running())
	sl.retiring, sl.inflight.refusing = true, true
	sl.loop.set(&sl.accept, frame.RefuseFor, func() {
		sl.inflight.refusing = false
		sl.inflight.startPull() // a [frame.Nudge] may have come in the meantime
	})
}

// closeDown begins to end Run, because its ctx is done.
func (sl *sleep) closeDown(cause error) {
	sl.inflight.closing, sl.cause = true, cause
	sl.watching = false
	sl.idle.stop()
	sl.loop.set(&sl.flush, sl.cfg.Flush, sl.closed)
}

// tryEnd runs after each function that the loop has called. After closeDown, once nothing is in
// flight, the runner sends [frame.Bye]. Run ends when the bye is answered, or at once if no
// [frame.Welcome] has ever come. After retire, once nothing is in flight, tryEnd calls
// Config.Retire.
func (sl *sleep) tryEnd() {
	switch closing := sl.inflight.closing; {
	case closing && sl.links.stage == lingering:
		sl.loop.finish(nil)
	case closing && sl.links.stage == joining:
		sl.closed()
	case closing && sl.quiet():
		sl.watchIdle()
	case !closing && sl.retiring && !sl.retired && sl.quiet():
		sl.accept.stop()
		sl.retired, sl.inflight.refusing = true, true
		sl.cfg.Retire()
	}
}

// closed ends Run without a [frame.Bye], with an error.
func (sl *sleep) closed() {
	sl.loop.finish(fmt.Errorf("the runner of box %s was stopped with %d requests in flight: %w", sl.cfg.Box, sl.deliveries.running(), sl.cause))
}

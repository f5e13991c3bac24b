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

// sleep decides when the box falls asleep and when Run ends. It has the runner say bye once
// no part of [life] has any work under way.
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

	halted   int  // inflight.delivered+1 at the time when all processes were stopped; see hasty
	yielded  int  // inflight.delivered+1 at the time when the host asked for memory
	asking   bool // the Executor is being asked since when the box is idle
	watching bool // asking, or sleep will ask when the alarm idle fires
	idle     alarm
	old      bool // half of the time until Deadline is over
	aging    alarm
	drainDue alarm
	retiring bool  // the host has asked the runner to retire
	accept   alarm // ends inflight.refusing
	retired  bool  // Retire was called
	cause    error // why Run's own ctx is done
	flush    alarm
}

// watchIdle asks the Executor whether the box may sleep. It repeats the question as long
// as the runner is in stage up.
func (sl *sleep) watchIdle() {
	if sl.links.stage != up || sl.watching {
		return
	}
	sl.watching, sl.asking = true, true
	before := sl.inflight.delivered
	sl.executing.call(func(e Executor) {
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
		sl.farewell.bye(max(time.Since(since), 0))
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

// hasty reports whether all processes were stopped and nothing was delivered since. The
// box then sleeps as soon as it has nothing to do.
func (sl *sleep) hasty() bool { return sl.halted == sl.inflight.delivered+1 }

func (sl *sleep) hurry() {
	sl.halted = sl.inflight.delivered + 1
	sl.askNow()
}

// yield gives memory back to the host: the box sleeps soon if nothing is delivered.
func (sl *sleep) yield() {
	sl.cfg.Log.Info("the host needs memory", "generation", sl.links.gen)
	sl.yielded = sl.inflight.delivered + 1
	if sl.cfg.Yield != nil {
		sl.executing.call(func(Executor) { sl.cfg.Yield() })
	}
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
		len(sl.deliveries.owed) == 0 && (len(sl.inflight.late) == 0 || sl.inflight.refuses()) && sl.outboxes.unsent() == 0 && len(sl.transfers.byName) == 0 && len(sl.transfers.waiting) == 0 && len(sl.queries.asking) == 0 && (!sl.inflight.pull.open || sl.inflight.refuses()) && len(sl.executing.waiting) == 0
}

// farewell says bye to the host before the box sleeps. The runner executes nothing after a bye,
// and repeats it until the host has taken it. If another message comes, the runner takes the bye
// back with a hello.
type farewell struct {
	cfg   *Config
	loop  *loop
	links *links

	worked bool          // a message did more than list or initialize; see frame.Deliver.Looks
	idle   time.Duration // how long the box had no work at the last bye
	byes   int           // how many were sent without an answer
	due    alarm
	linger alarm
}

// bye begins the sleep. idle is how long the box had no work.
func (fw *farewell) bye(idle time.Duration) {
	fw.links.stage, fw.byes, fw.idle = parting, 0, idle
	fw.sayBye()
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

// byeTaken handles the host's answer to a bye: the box is asleep. The runner stays for
// Linger, in case a message was already on its way.
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

// takeBack sends hello again after a bye, on the same connection with a new number. The
// welcome tells whether the host had taken the bye.
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

// drainSlack is the time that is left before Deadline when the last message ends, if that
// message took Longest. Its result and the bye still have to reach the host.
const drainSlack = 20 * time.Second

// expectDeadline prepares for the end of the runner's time. A runner whose time is too
// short for Longest drains after half of it: it may be cut off, but it does some work.
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

// drain ends Run before the Deadline of the box: the runner finishes its requests and leaves new
// ones to its successor.
func (sl *sleep) drain() {
	sl.cfg.Log.Info("draining: the time of the box is almost over", "generation", sl.links.gen, "in_flight", sl.deliveries.running)
	sl.inflight.draining = true
	sl.askNow()
}

// retire begins to end Run because the host asks for it.
func (sl *sleep) retire() {
	if sl.cfg.Retire == nil || sl.retiring || sl.inflight.closing {
		return
	}
	sl.cfg.Log.Info("retiring: the server is configured differently by now", "generation", sl.links.gen, "in_flight", sl.deliveries.running)
	sl.retiring, sl.inflight.refusing = true, true
	sl.loop.set(&sl.accept, frame.RefuseFor, func() {
		sl.inflight.refusing = false
		sl.inflight.startPull() // a nudge may have come in the meantime
	})
}

// closeDown begins to end Run because Run's ctx is done.
func (sl *sleep) closeDown(cause error) {
	sl.inflight.closing, sl.cause = true, cause
	sl.watching = false
	sl.idle.stop()
	sl.loop.set(&sl.flush, sl.cfg.Flush, sl.closed)
}

// tryEnd ends Run, if something has begun to end it, as soon as nothing is in flight. If there is a
// connection, the runner says bye first, which tells the host that nothing was lost.
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

// closed ends Run without a bye.
func (sl *sleep) closed() {
	sl.loop.finish(fmt.Errorf("the runner of box %s was stopped with %d requests in flight: %w", sl.cfg.Box, sl.deliveries.running, sl.cause))
}

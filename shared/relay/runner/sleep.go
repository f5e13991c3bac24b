package runner

import (
	"fmt"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
)

// How the box falls asleep: bye when there is nothing to do, nothing is
// executed after it, and what comes late makes the runner say hello again.

const (
	byeAgain = 2 * time.Second
	byeTries = 5 // then the connection is given up

	mostUnasked    = 30 * time.Second // a busy box is asked again whether it is idle
	unaskedClosing = 50 * time.Millisecond
)

// sleep is what a life knows of falling asleep.
type sleep struct {
	watching bool // the Executor is asked since when it is idle, or will be when idle rings
	idle     alarm
	byes     int // said without an answer
	byeDue   alarm
	ending   alarm
}

// watchIdle asks the Executor whether the box may sleep, and does so again for as
// long as it is up.
func (l *life) watchIdle() {
	if l.stage != up || l.watching {
		return
	}
	l.watching = true
	before := l.delivered
	l.call(func() {
		since, ok := l.Executor.IdleSince()
		l.r.post(func(l *life) { l.idleSince(since, ok && before == l.delivered) })
	})
}

func (l *life) idleSince(since time.Time, ok bool) {
	if l.stage != up {
		l.watching = false
		return
	}
	left := l.Idle - time.Since(since)
	if l.closing {
		left = 0
	}
	if ok && left <= 0 && l.quiet() {
		l.bye()
		return
	}
	again := left
	if !ok || left <= 0 {
		again = min(l.Idle/4, mostUnasked)
	}
	if l.closing {
		again = unaskedClosing
	}
	l.set(&l.idle, again, func() {
		l.watching = false
		l.watchIdle()
	})
}

// quiet says that this end has nothing under way with the host. A pull that is
// open does not hold up a runner that is told to stop: it will not execute what
// comes.
func (l *life) quiet() bool {
	return l.linked() && l.next == nil && !l.dialing && !l.live.greeting() && !l.live.busy() &&
		len(l.owed) == 0 && (len(l.late) == 0 || l.closing) && l.unsent() == 0 && len(l.transfers) == 0 && len(l.lining) == 0 && len(l.asking) == 0 && (!l.pull.open || l.closing) && len(l.waiting) == 0
}

// bye says that from now on nothing is executed.
func (l *life) bye() {
	l.stage, l.byes, l.watching = parting, 0, false
	l.idle.stop()
	l.sayBye()
}

func (l *life) sayBye() {
	if l.stage != parting || l.live == nil {
		return
	}
	if l.byes == byeTries {
		l.cut(l.live, errSilent)
		return
	}
	l.byes++
	l.live.sendFirst(frame.Encode(frame.Frame{Type: frame.Bye, Box: l.Box, Gen: l.gen, Runner: l.runner, Link: l.no, Looks: !l.worked}))
	l.set(&l.byeDue, byeAgain, l.sayBye)
}

// byeTaken: the box is asleep. The runner stays a little for what was already
// under way to it.
func (l *life) byeTaken(f frame.Frame) {
	if l.stage != parting || f.Link != l.no {
		return
	}
	l.stage = lingering
	l.byeDue.stop()
	l.Log.Info("asleep", "generation", l.gen)
	l.set(&l.ending, l.Linger, func() {
		if l.stage == lingering {
			l.finish(nil)
		}
	})
}

// wakeAgain says hello again after a bye, on the same connection with a new
// number: the welcome tells whether the bye had been taken.
func (l *life) wakeAgain() {
	if l.stage != parting && l.stage != lingering || l.closing {
		return
	}
	l.stage = rejoining
	l.byeDue.stop()
	l.ending.stop()
	if l.live != nil {
		l.hello(l.live)
	}
}

// cutAsleep: the connection is lost after a bye. If it was not taken, it is not
// said again: the hello on the next connection tells where things stand.
func (l *life) cutAsleep() {
	if l.stage == parting {
		l.stage = rejoining
		l.byeDue.stop()
	}
}

// closeDown begins the end that ctx asks for.
func (l *life) closeDown(cause error) {
	l.closing, l.cause = true, cause
	l.watching = false
	l.idle.stop()
	l.set(&l.ending, l.Flush, l.closed)
}

// tryClose ends the life as soon as nothing is in flight: by a bye if there is a
// connection, so that the host knows that nothing was lost.
func (l *life) tryClose() {
	switch {
	case l.stage == lingering:
		l.finish(nil)
	case l.stage == joining:
		l.closed()
	case l.quiet():
		l.watchIdle()
	}
}

// closed ends without a bye.
func (l *life) closed() {
	l.finish(fmt.Errorf("the runner of box %s was stopped with %d requests in flight: %w", l.Box, l.running, l.cause))
}

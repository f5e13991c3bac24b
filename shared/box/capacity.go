package box

import (
	"fmt"
	"time"
)

// tryAgain is the time after which a refused client may come back.
const tryAgain = 10 * time.Second

// room finds room for one more process. Below the limit it returns nil and true at once.
// Else it returns the process whose end makes room: one that is already ending, or the
// one that has been idle longest, which it stops. It returns false if all processes are
// at work.
func (b *Box) room() (free *process, ok bool) {
	if b.server.MaxProcesses == 0 {
		return nil, true
	}
	n := 0
	var idle *process
	for _, g := range b.groups {
		for _, p := range g.live {
			switch {
			case p.followed:
				continue // its room belongs to another process, which is counted
			case p.state >= stopping || g.current != p:
				free = p
			case p.state == ready && p.conv.idle() && (idle == nil || p.clock.used.Before(idle.clock.used)):
				idle = p
			}
			n++
		}
	}
	if n < b.server.MaxProcesses {
		return nil, true
	}
	if free == nil && idle != nil {
		b.log.Info("an idle process is stopped to make room", "server", b.server.Name, "process", idle.g.id, "limit", b.server.MaxProcesses)
		idle.stop(nil)
		free = idle
	}
	if free == nil {
		return nil, false
	}
	free.followed = true
	return free, true
}

// full returns the fault of a request that finds no room for a process.
func (b *Box) full() *fault {
	f := b.unavailable(fmt.Sprintf("%d processes run, as many as may, and all are at work: try again in %s", b.server.MaxProcesses, tryAgain))
	f.data.Limit, f.data.RetryAfter = float64(b.server.MaxProcesses), tryAgain.Seconds()
	return f
}

// backOff delays starts after failures: not after the first, then by 2, 4 and 8 seconds.
// Without it every retry of a client would start a process of a server that cannot
// start.
type backOff struct {
	failed int
	next   time.Time
}

const maxPause = 8 * time.Second

func (o *backOff) failure() {
	o.failed++
	if o.failed > 1 {
		o.next = time.Now().Add(min(time.Second<<min(o.failed-1, 10), maxPause))
	}
}

func (o *backOff) success() { *o = backOff{} }

// wait returns how long the next start has to wait.
func (o *backOff) wait() time.Duration { return max(0, time.Until(o.next)) }

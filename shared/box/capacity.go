package box

import (
	"fmt"
	"time"
)

// tryAgain is when somebody who found no room is told to come back.
const tryAgain = 10 * time.Second

// room finds room for one more process. It is free at once if there are fewer than
// there may be, else when the process is gone that it returns: one that ends already,
// or the one that has had nothing to do for longest, which is stopped for it. It is
// not ok when all have something to do.
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
				continue // its room is that of another, which is counted
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

// full is why there is no process for a request.
func (b *Box) full() *fault {
	f := b.unavailable(fmt.Sprintf("%d processes run, as many as may, and all are at work: try again in %s", b.server.MaxProcesses, tryAgain))
	f.data.Limit, f.data.RetryAfter = float64(b.server.MaxProcesses), tryAgain.Seconds()
	return f
}

// backOff makes starts wait after those that failed before: the first time not at
// all, then for 2, 4 and 8 seconds. Every client that tries again would else start
// a process of a server that cannot start.
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

// wait is how long the next start has to wait.
func (o *backOff) wait() time.Duration { return max(0, time.Until(o.next)) }

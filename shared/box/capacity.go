package box

import (
	"fmt"
	"time"
)

// tryAgain is the time after which a client whose request was refused may send it again.
const tryAgain = 10 * time.Second

// makeRoom finds room for one more process. Below the limit it returns nil and true. At the limit
// makeRoom returns a process that is ending, for whose end the new process must wait. If no
// process is ending, makeRoom stops the one that has been idle longest. If all processes are busy,
// makeRoom returns false.
func (b *Box) makeRoom() (free *process, ok bool) {
	if b.server.MaxProcesses == 0 {
		return nil, true
	}
	n, idle := 0, b.idlest()
	for _, g := range b.groups {
		for _, p := range g.live {
			if p.followed || p.nap.asleep() {
				continue // the limit counts neither a process that sleeps nor one that has a successor
			}
			if p.state >= stopping || g.current != p {
				free = p
			}
			n++
		}
	}
	if n < b.server.MaxProcesses {
		return nil, true
	}
	if free == nil && idle != nil {
		b.log.Info("an idle process is stopped to make room", "server", b.server.Name, "process", idle.group.id, "limit", b.server.MaxProcesses)
		idle.evicted = ", and another process of its server needed its place"
		idle.stop(nil)
		free = idle
	}
	if free == nil {
		return nil, false
	}
	free.followed = true
	return free, true
}

// Idlest finds the process that has been idle longest. See [guard.Sleeper] for the results.
func (b *Box) Idlest() (since time.Time, stop func() <-chan struct{}, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.idlest()
	if p == nil {
		return time.Time{}, nil, false
	}
	since = p.clock.used
	return since, func() <-chan struct{} {
		b.mu.Lock()
		defer b.mu.Unlock()
		if p.state != ready || !p.isCurrent() || !p.conv.idle() || !p.clock.used.Equal(since) {
			return nil
		}
		b.log.Info("an idle process is stopped, because the memory is full", "server", b.server.Name, "process", p.group.id)
		p.evicted = ", and another process needed its memory"
		p.stop(nil)
		return p.over
	}, true
}

// idlest returns the ready process that has been idle longest, nil if no ready process is idle.
func (b *Box) idlest() (idle *process) {
	for _, g := range b.groups {
		if p := g.current; p != nil && p.state == ready && p.conv.idle() && (idle == nil || p.clock.used.Before(idle.clock.used)) {
			idle = p
		}
	}
	return idle
}

// atLimit reports whether the box runs as many processes as it may.
func (b *Box) atLimit() bool {
	n := 0
	for _, g := range b.groups {
		n += len(g.live)
	}
	return b.server.MaxProcesses > 0 && n >= b.server.MaxProcesses
}

// full returns the error for a request that needs a new process when all processes are busy.
func (b *Box) full() *fault {
	f := b.unavailable(fmt.Sprintf("all %d processes that may run are busy: try again in %s", b.server.MaxProcesses, tryAgain))
	f.data.Limit, f.data.RetryAfter = float64(b.server.MaxProcesses), tryAgain.Seconds()
	return f
}

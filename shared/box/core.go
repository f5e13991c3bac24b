package box

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
)

// child is a running process: a [proc.Child], or a fake in tests.
type child interface {
	PID() int
	Since() time.Time
	Stdin() io.Writer
	Stdout() io.Reader
	Stderr() io.Reader
	CloseStdin()
	Unread() (n int, ok bool)
	Interrupt()
	Reread() (take func() ([]byte, error), err error)
	Terminate()
	Kill()
	Release()
	Exited() <-chan struct{}
	Abandoned() <-chan struct{}
	Exit() (e proc.Exit, ok bool)
	KernelKilled() bool
}

// touch records that a client is active now.
func (b *Box) touch() { b.used = time.Now() }

// enter counts a goroutine that Close waits for. Each call must be followed by a call of leave.
func (b *Box) enter() { b.active++ }

func (b *Box) leave() {
	b.active--
	if b.active == 0 && b.over != nil && !isClosed(b.over) { // output after the end of Close raises and lowers active again
		close(b.over)
	}
}

// remove deletes the files of a session's processes. A saved workspace that belongs only to the
// session is deleted too.
func (b *Box) remove(sessionID string) {
	if b.server.Provisioner == nil {
		return
	}
	b.enter()
	b.server.Guard.Go(func() {
		err := b.server.Provisioner.Remove(sessionID)
		if b.server.Keeper != nil {
			ctx, done := context.WithTimeout(b.saves, saveTime)
			defer done()
			if b.server.Kept == ScopePrincipal {
				b.server.Keeper.Leave(sessionID)
			} else {
				err = errors.Join(err, b.server.Keeper.Forget(ctx, sessionID))
			}
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if err != nil {
			b.log.Warn("cannot remove the files that were prepared", "server", b.server.Name, "session_id", sessionID, "error", err)
		}
		b.leave()
	})
}

// unavailable returns the error of requests that end because the box cannot execute them.
func (b *Box) unavailable(why string) *fault {
	return b.server.fault(PhaseBoxUnavailable, "%s", why)
}

// interrupted returns the error of requests whose process or session ends before they are answered.
func (b *Box) interrupted(why string) *fault {
	f := b.unavailable(why + "; whether the call was executed is not known")
	f.unsent = b.unavailable(why + "; the call was not executed, send it again").message
	return f
}

// saveTime limits how long the box takes to save a workspace, because the next process of the
// session waits for the save.
const saveTime = 2 * time.Minute

// backOff delays starts after failures: not after the first one, then by 2 and by 4 seconds, and
// from then on by 8.
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

func (o *backOff) wait() time.Duration { return max(0, time.Until(o.next)) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

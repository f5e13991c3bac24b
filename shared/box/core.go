package box

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/box/redact"
	"github.com/dormouse-mcp/dormouse/shared/bridge"
)

// boxCore is what the sessions and processes of a box share.
type boxCore struct {
	server  Server
	sink    Sink
	log     *slog.Logger
	hide    *redact.Redactor
	grace   proc.Grace
	draw    func() int64 // see conversation
	spawn   func(proc.Command, proc.Grace) (child, error)
	lacks   sync.Once          // the box logs once which guards the sandboxes lack
	marks   atomic.Int64       // how many processes got one
	saves   context.Context    //nolint:containedctx // of the workspaces that are saved; Close ends it
	abandon context.CancelFunc // ends saves

	// mu guards everything below, and all sessions, groups and processes. A goroutine
	// that holds it works on tables and copies messages. It must not make a system call
	// that may wait, call the sink or parse a message.
	mu     sync.Mutex
	era    bridge.Era // of the server, "" if it is not known
	used   time.Time  // when a client or one of its calls was last active
	counts Counts
	starts backOff       // after starts that failed
	active int           // processes and calls of the sink under way
	over   chan struct{} // not nil when Close waits: closed when active is zero
}

// child is a running process. A [proc.Child] is one; tests have others.
type child interface {
	PID() int
	Since() time.Time
	Stdin() io.Writer
	Stdout() io.Reader
	Stderr() io.Reader
	CloseStdin()
	Unread() (n int, ok bool)
	Terminate()
	Kill()
	Release()
	Exited() <-chan struct{}
	Abandoned() <-chan struct{}
	Exit() (e proc.Exit, ok bool)
	KernelKilled() bool
}

// touch notes that a client is active.
func (c *boxCore) touch() { c.used = time.Now() }

// enter counts a goroutine that Close waits for. Its end is counted by leave.
func (c *boxCore) enter() { c.active++ }

func (c *boxCore) leave() {
	c.active--
	if c.active == 0 && c.over != nil && !isClosed(c.over) { // a message may come after Close
		close(c.over)
	}
}

// remove deletes the files that were made for the processes of a session.
func (c *boxCore) remove(sessionID string) {
	if c.server.Provisioner == nil {
		return
	}
	c.enter()
	go func() {
		err := c.server.Provisioner.Remove(sessionID)
		if c.server.Keeper != nil {
			ctx, done := context.WithTimeout(c.saves, saveTime)
			defer done()
			if c.server.Kept == ScopePrincipal {
				c.server.Keeper.Leave(sessionID)
			} else {
				err = errors.Join(err, c.server.Keeper.Forget(ctx, sessionID))
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if err != nil {
			c.log.Warn("cannot remove the files that were prepared", "server", c.server.Name, "session_id", sessionID, "error", err)
		}
		c.leave()
	}()
}

// unavailable returns the fault of requests that end because the box cannot serve them.
func (c *boxCore) unavailable(why string) *fault {
	return c.server.fault(PhaseBoxUnavailable, "%s", why)
}

// interrupted returns the fault of requests in flight whose process or session ends before
// they do.
func (c *boxCore) interrupted(why string) *fault {
	f := c.unavailable(why + "; whether the call was executed is not known")
	f.unsent = c.unavailable(why + "; the call was not executed, send it again").message
	return f
}

// saveTime limits how long the box takes to save a workspace. Only two things wait for a
// save: the next process of the session, and the box before it sleeps.
const saveTime = 2 * time.Minute

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

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

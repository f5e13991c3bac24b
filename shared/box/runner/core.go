package runner

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// stage is the stage of a runner's life.
//
//	joining ──▶ up ──▶ parting ──▶ lingering ──▶ (returns)
//	            ▲         │            │
//	            └───── rejoining ◀─────┘
//
// Only in stage up does the runner execute messages, and send frames other than hello
// and bye.
type phase int

const (
	joining   phase = iota // no welcome yet
	up                     // welcomed, no bye since
	parting                // bye was said
	lingering              // the host has taken the bye; the runner stays for messages that were on their way
	rejoining              // the runner has sent hello after the bye; the welcome decides
)

// ackAfter is the time after which a frame without an answer is sent again.
const ackAfter = 5 * time.Second

// core is the state that all parts of a life share: the identity of this runner, its
// stage, and the loop. Only the goroutine of Run touches core and the parts. Goroutines
// that read, write, dial, execute or wait post closures to the loop.
type core struct {
	Config
	runner string             // this runner's random id, which only the host knows
	gen    storage.Generation // of the last welcome
	no     int64              // number of the last hello on a new connection or after a bye
	stage  phase

	post   func(do func()) bool // makes the loop call do; returns false if the loop has ended
	ctx    context.Context      // of dialing; ends with Run
	cancel context.CancelFunc
	wg     sync.WaitGroup // all goroutines that Run began

	over    bool // Run returns err
	err     error
	closing bool  // Run's own ctx is done
	cause   error // why

	retiring bool // the host has asked the runner to retire
	refusing bool // no new message is executed, because the runner is retiring
	draining bool // no new message is executed, because the runner's time is almost over

	executing
}

// spawn calls do in a goroutine that Run waits for.
func (c *core) spawn(do func()) {
	c.wg.Go(func() {
		defer c.Guard.Catch()
		do()
	})
}

// refuses reports whether the runner leaves new messages to its successor. The sender of
// such a message finds that this generation is over, and sends it to the next one.
func (c *core) refuses() bool { return c.closing || c.refusing || c.draining }

func (c *core) sender() frame.Sender { return frame.Sender{Box: c.Box, Gen: c.gen, Runner: c.runner} }

// ofBox is sender without the runner's id, for frames that the host trusts because of
// their tickets.
func (c *core) ofBox() frame.Sender { return frame.Sender{Box: c.Box, Gen: c.gen} }

func (c *core) finish(err error) {
	if !c.over {
		c.over, c.err = true, err
	}
}

func (c *core) fence() {
	c.Log.Warn("fenced by a newer runner", "generation", c.gen, "link", c.no)
	c.finish(storage.Errorf(ErrFenced, "a newer runner than generation %d runs box %s; stop and exit", c.gen, c.Box))
}

// drawn returns a random duration of at least 0 and less than d.
func (c *core) drawn(d time.Duration) time.Duration {
	return time.Duration(c.Rand.Int64N(int64(max(d, 1))))
}

// executing is the queue of calls for the goroutine that calls the Executor. With it, an
// Executor that blocks in [Runner.Event] does not block the loop.
type executing struct {
	calls   chan func() // capacity 1; filled only while calling is false
	waiting []func()
	calling bool
}

// call queues f for the Executor's goroutine, after all earlier calls.
func (c *core) call(f func()) {
	c.waiting = append(c.waiting, f)
	c.nextCall()
}

func (c *core) nextCall() {
	if c.calling || len(c.waiting) == 0 {
		return
	}
	c.calling = true
	c.calls <- c.waiting[0]
	c.waiting[0] = nil
	c.waiting = c.waiting[1:]
}

func (c *core) execute() {
	for f := range c.calls {
		f()
		c.post(func() {
			c.calling = false
			c.nextCall()
		})
	}
}

// alarm is a timer of the loop. After it was set again or stopped, it does not call the
// earlier function any more.
type alarm struct {
	timer *time.Timer
	set   int
}

func (c *core) set(a *alarm, after time.Duration, do func()) {
	a.stop()
	now := a.set
	a.timer = c.Guard.After(after, func() {
		c.post(func() {
			if a.set == now {
				do()
			}
		})
	})
}

func (a *alarm) stop() {
	a.set++
	if a.timer != nil {
		a.timer.Stop()
	}
}

var errSilent = errors.New("the host does not answer")

package runner

import (
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

// ackAfter is the time after which a frame without an answer is sent again.
const ackAfter = 5 * time.Second

// loop is the goroutine of Run. Only this goroutine uses a [life].
type loop struct {
	post func(do func()) bool // makes the loop call the function do; returns false if the loop has ended
	wg   sync.WaitGroup       // all goroutines that Run began

	over bool // Run is to return err
	err  error
}

func (lo *loop) finish(err error) {
	if !lo.over {
		lo.over, lo.err = true, err
	}
}

// executing queues calls for the goroutine that calls the Executor, because an Executor that
// blocks in [Runner.Event] must not block the loop.
type executing struct {
	loop     *loop
	executor frame.Executor            // only the goroutine of execute uses it
	calls    chan func(frame.Executor) // the next call for the goroutine of execute; capacity 1, so the loop never blocks
	waiting  []func(frame.Executor)
	calling  bool
}

// call queues f for the Executor's goroutine, after all earlier calls.
func (x *executing) call(f func(frame.Executor)) {
	x.waiting = append(x.waiting, f)
	x.nextCall()
}

func (x *executing) nextCall() {
	if x.calling || len(x.waiting) == 0 {
		return
	}
	x.calling = true
	x.calls <- x.waiting[0]
	x.waiting[0] = nil
	x.waiting = x.waiting[1:]
}

func (x *executing) execute() {
	for f := range x.calls {
		f(x.executor)
		x.loop.post(func() {
			x.calling = false
			x.nextCall()
		})
	}
}

// alarm is a timer of the loop. Once the alarm is set again or stopped, the loop does not call the
// earlier function any more.
type alarm struct {
	timer *time.Timer
	set   int
}

func (lo *loop) set(a *alarm, after time.Duration, do func()) {
	a.stop()
	now := a.set
	a.timer = time.AfterFunc(after, func() {
		lo.post(func() {
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

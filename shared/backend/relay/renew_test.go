package relay_test

import (
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// evenWorld is a world in which each step always takes the same time and the box does not
// fall asleep when it is idle. So the cost of a renewal can be measured to the nanosecond.
func evenWorld(t *testing.T, test func(w *cutWorld)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newCutWorld(t, cutPoint{frame: -1}, 1)
		w.wire.even, w.patience = true, 100*time.Hour
		w.set = func(c *runner.Config) { c.Idle = 30 * time.Hour }
		test(w)
		w.close()
		w.wire.mu.Lock()
		defer w.wire.mu.Unlock()
		if len(w.wire.limits) > 0 {
			w.t.Errorf("limits of the gateway were met: %v", w.wire.limits)
		}
	})
}

// quickCalls makes n calls, one every tenth of a second. A call does not wait for the
// answers to the ones before.
func (w *cutWorld) quickCalls(id storage.ID, number *int, n int) {
	for range n {
		*number++
		now := *number
		w.box.work.Go(func() { w.call(id, now, cutCall{Label: fmt.Sprintf("quick%d", now)}) })
		time.Sleep(100 * time.Millisecond)
	}
}

// sameTime checks that all quick calls took the same time.
func (w *cutWorld) sameTime() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.quick) != 1 {
		w.t.Errorf("quick calls took %v", w.quick)
	}
}

// opens returns how many connections there have been.
func (w *cutWorld) opens() int {
	w.wire.mu.Lock()
	defer w.wire.mu.Unlock()
	return w.wire.opened
}

func TestCallsDoNotFeelARenewal(t *testing.T) {
	evenWorld(t, func(w *cutWorld) {
		id, number := w.open(), 0
		w.call(id, 1, cutCall{Label: "wakes the box", Wait: 1})
		begun := time.Now()
		for time.Since(begun) < 12*time.Hour {
			was := w.opens()
			// One call is in flight during a whole renewal. Quick calls run from well
			// before the renewal to well after the old connection was closed.
			time.Sleep(110*time.Minute - 5*time.Second - time.Since(begun)%(110*time.Minute))
			number++
			slow := number
			w.box.work.Go(func() {
				w.call(id, slow, cutCall{Label: fmt.Sprintf("slow%d", slow), Wait: 4000, Progress: 5})
			})
			w.quickCalls(id, &number, 250)
			if n := w.opens(); n != was+1 {
				w.t.Errorf("%d connections after %s, and %d before the renewal", n, time.Since(begun), was)
			}
		}
		w.sameTime()
		if n := w.opens(); n != 8 {
			w.t.Errorf("%d connections in %s", n, time.Since(begun))
		}
	})
}

func TestFramesOfADayOfABoxThatIsAwakeAndIdle(t *testing.T) {
	evenWorld(t, func(w *cutWorld) {
		w.call(w.open(), 1, cutCall{Label: "wakes the box"})
		time.Sleep(time.Second)
		w.wire.mu.Lock()
		w.wire.types = [2]map[frame.Type]int{{}, {}}
		w.wire.mu.Unlock()
		time.Sleep(24 * time.Hour)
		w.wire.mu.Lock()
		got := [2]map[frame.Type]int{maps.Clone(w.wire.types[upward]), maps.Clone(w.wire.types[downward])}
		w.wire.mu.Unlock()
		// There is a hello every five minutes: a ping, or one of 13 renewals.
		commontest.SameIn(w.t, "messages of a day", [2]map[frame.Type]int{{frame.TypeHello: 288}, {frame.TypeWelcome: 288}}, got)
	})
}

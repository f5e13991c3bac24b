//go:build e2e

package dormouse_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// Boxes run as invocations of a function, each of which lives for boxLife at most. In the second
// half of that time it begins no call, and the next box takes new calls.
func TestE2ELambdaCallsAcrossTheEndsOfLivesEndInTheirResults(t *testing.T) {
	t.Parallel()
	const sessions, boxLife, long = 4, 8 * time.Second, 20 * time.Second
	m := recorded(t).asPrograms()
	m.emulator.Boxes, m.emulator.BoxLife = true, boxLife
	m.start(sleepy()...)
	var callers sync.WaitGroup
	var mu sync.Mutex
	var made []string
	until := time.Now().Add(long)
	for i := range sessions {
		c := m.session("one")
		callers.Go(func() {
			for n := 0; time.Now().Before(until); n++ {
				tag := fmt.Sprintf("session %d call %d", i, n)
				all, err := c.call("work", fmt.Sprintf(`{"tag":%q,"before":%d,"pause":300}`, tag, n%5))
				if err != nil {
					t.Errorf("%s: %v", tag, err)
					return
				}
				if last := all[len(all)-1]; textOf(last) != "worked" {
					t.Errorf("%s ended in %s", tag, last.Raw)
				}
				mu.Lock()
				made = append(made, tag)
				mu.Unlock()
			}
		})
	}
	callers.Wait()
	slices.Sort(made)
	if ran := ranOnce(t, m.calls); !slices.Equal(made, ran) {
		t.Errorf("%d calls have ended in results, %d ran", len(made), len(ran))
	}
	wakes, crashes := m.count("box.wake"), m.count("box.crash")
	if least := int(long / boxLife); wakes < least || crashes > 0 {
		t.Errorf("%d boxes were started, want %d or more; %d crashed", wakes, least, crashes)
	}
	m.asleep()
}

//go:build e2e

package dormouse_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// lambdaMachine returns a machine whose boxes run as invocations of a function. Each server
// is the test server, whose calls go to a file and may take some seconds.
func lambdaMachine(t *testing.T, seconds int, names ...string) (m *machine, log string) {
	t.Helper()
	program := stdio(t)
	log = filepath.Join(t.TempDir(), "calls")
	file := map[string]any{}
	for _, name := range names {
		file[name] = map[string]any{
			"command": program, "args": []string{"-name", name, "-calls", log}, "x-dormouse": map[string]any{"tool_timeout_sec": seconds},
		}
	}
	m = machineOf(t, file).asPrograms()
	m.emulator.Boxes = true
	return m, log
}

// lifetimes names the environment variable with the duration of
// TestE2ELambdaCallsAcrossTheEndsOfLivesEndInTheirResults, such as 10m.
const lifetimes = "DORMOUSE_TEST_LIFETIMES"

// A box lives for 20 seconds at most. In the second half of that time it begins no call,
// and the next box takes new calls.
func TestE2ELambdaCallsAcrossTheEndsOfLivesEndInTheirResults(t *testing.T) {
	t.Parallel()
	long, err := time.ParseDuration(cmp.Or(os.Getenv(lifetimes), "45s"))
	commontest.OK(t, err)
	const sessions = 4
	m, log := lambdaMachine(t, 8, "one")
	m.emulator.BoxLife = 20 * time.Second
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
	ran := ranOnce(t, log)
	slices.Sort(made)
	if !slices.Equal(made, ran) {
		t.Errorf("%d calls have ended in results, %d ran", len(made), len(ran))
	}
	wakes, crashes := m.count("box.wake"), m.count("box.crash")
	if least := int(long / (20 * time.Second)); wakes < least || crashes > 0 {
		t.Errorf("%d boxes were started, want %d or more; %d crashed", wakes, least, crashes)
	}
	t.Logf("%d calls in %d lives", len(made), wakes)
	m.asleep()
}

// Each box has a TMPDIR of its own, and nothing of it is left when its environment ends.
func TestE2ELambdaBoxesShareNoEnvironment(t *testing.T) {
	t.Parallel()
	m, _ := lambdaMachine(t, 8, "one", "other")
	m.start(sleepy()...)
	one, other := m.session("one"), m.session("other")
	if one.whoami().PID == other.whoami().PID || len(m.those("runner")) != 2 {
		t.Errorf("two servers have the runners %v", m.those("runner"))
	}
	folders := func() []string {
		list, err := filepath.Glob(filepath.Join(m.data, "environments", "*"))
		commontest.OK(t, err)
		return list
	}
	if list := folders(); len(list) != 2 {
		t.Errorf("the environments are %v", list)
	}
	m.asleep()
	m.eventually(patience, "the environments are removed", func() bool { return len(folders()) == 0 })
	commontest.EqualIn(t, "the next box counts", "1", one.text("count", ""))
}

//go:build e2e

package dormouse_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
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
	if got := one.text("count", ""); got != "1" {
		t.Errorf("the next box counts %s", got)
	}
}

// All environments are in use, so Lambda refuses the start of another box.
func TestE2ELambdaRefusedStartGoesToTheNextPlace(t *testing.T) {
	t.Parallel()
	m, _ := lambdaMachine(t, 8, "one", "other")
	m.emulator.BoxRoom = 1
	m.start(sleepy()...)
	one := m.session("one")
	begun := time.Now()
	other := m.session("other")
	if got := other.text("echo", `{"text":"I am elsewhere"}`); got != "I am elsewhere" {
		t.Errorf("the other server says %q", got)
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("that took %s", took)
	}
	if got := one.text("echo", `{"text":"I am here"}`); got != "I am here" {
		t.Errorf("the server says %q", got)
	}
	wakes := map[string]bool{}
	for _, e := range m.events() {
		if e.Kind == "box.wake" {
			wakes[fmt.Sprint(e.Name, " as a program: ", e.PID != 0)] = true
		}
	}
	if !wakes["one as a program: false"] || !wakes["other as a program: true"] {
		t.Errorf("boxes woke as %v", wakes)
	}
}

// If Lambda cannot make an environment, the box never starts and nothing reports that.
// The next place then starts it.
func TestE2ELambdaStartThatNeverComesGoesToTheNextPlace(t *testing.T) {
	t.Parallel()
	m, _ := lambdaMachine(t, 8, "one")
	m.start(sleepy()...)
	commontest.OK(t, os.RemoveAll(filepath.Join(m.data, "environments")))
	begun := time.Now()
	c := m.session("one")
	if took := time.Since(begun); took < 70*time.Second || took > 110*time.Second {
		t.Errorf("the first answer took %s, and the start should have been given up after 75 s", took)
	}
	if got := c.text("echo", `{"text":"I am elsewhere"}`); got != "I am elsewhere" {
		t.Errorf("the server says %q", got)
	}
}

// Nothing reports the death of a box on Lambda. The function that waits for a call of the
// box notices it.
func TestE2ELambdaKilledRunnerEndsItsCallAndTheSessionGoesOn(t *testing.T) {
	t.Parallel()
	m, log := lambdaMachine(t, 600, "one")
	m.start(sleepy()...)
	c := m.session("one")
	gate := filepath.Join(t.TempDir(), "gate")
	type end struct {
		all []wire.Message
		err error
	}
	ended := make(chan end, 1)
	go func() {
		all, err := c.call("work", fmt.Sprintf(`{"tag":"of the dead","gate":%q}`, gate))
		ended <- end{all, err}
	}()
	m.eventually(patience, "the call runs", func() bool { return strings.Contains(read(t, log), "of the dead") })
	killed := time.Now()
	m.kill(m.only("runner"))
	got := <-ended
	if took := time.Since(killed); took > 100*time.Second {
		t.Errorf("the call ended after %s", took)
	}
	if got.err != nil {
		t.Fatal(got.err)
	}
	f, err := failureOf(got.all[len(got.all)-1])
	if err != nil || !strings.Contains(f.Message, "not known") {
		t.Errorf("the call ended in %s, %v", got.all[len(got.all)-1].Raw, err)
	}
	m.eventually(patience, "the server of the dead box is gone", func() bool { return len(m.those("stdio")) == 0 })
	if got := c.text("echo", `{"text":"alive"}`); got != "alive" {
		t.Errorf("the session says %q", got)
	}
}

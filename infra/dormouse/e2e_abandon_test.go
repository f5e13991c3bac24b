//go:build e2e

package dormouse_test

import (
	"flag"
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// abandoned is how many sessions the test starts and abandons. The acceptance test
// uses 1,000.
var abandoned = flag.Int("abandoned", 100, "sessions of TestE2EAbandonedSessionsLeaveNothing")

// The test kills a runner after every tenth session, and everything after every
// fiftieth.
const (
	runnerDies     = 10
	everythingDies = 50
)

func TestE2EAbandonedSessionsLeaveNothing(t *testing.T) {
	t.Parallel()
	m := rogues(t, map[string]map[string]any{
		"confined": {"profile": "network_basic"}, "free": {},
	})
	work := m.ownCache()
	t.Cleanup(func() {
		for _, pid := range marked(t, work) { // of a test that has failed
			if n, err := strconv.Atoi(pid); err == nil {
				_ = syscall.Kill(n, syscall.SIGKILL)
			}
		}
	})
	m.start(sleepy()...)
	leaks := 0 // how many processes of a server that leaks were ever there at once
	for n := 1; n <= *abandoned; n++ {
		name := []string{"confined", "free"}[n%2]
		c := m.client(name)
		commontest.OKIn(t, fmt.Sprintf("session %d", n), c.open(params))
		// Some calls leave processes behind, and some are cut in the middle.
		s, err := c.post(c.request(c.id(), []string{"pid", "leak", "deaf"}[n%3], ""))
		if err != nil {
			t.Fatalf("session %d: %v", n, err)
		}
		if n%3 == 1 {
			_, err = s.messages()
		}
		s.close()
		if err != nil {
			t.Errorf("session %d: %v", n, err)
		}
		leaks = max(leaks, len(marked(t, work)))
		switch {
		case n%everythingDies == 0:
			m.killAll()
			m.start(sleepy()...)
		case n%runnerDies == 0:
			m.kill(m.those("runner")...)
		}
	}
	if leaks < 5 {
		t.Fatalf("at most %d processes of a server that leaks are found: this test would find nothing", leaks)
	}
	m.eventually(2*time.Minute, "all that was abandoned is asleep", func() bool { return len(m.those("runner")) == 0 })
	// The next runners remove what killed runners have left.
	for _, name := range []string{"confined", "free"} {
		m.session(name).text("pid", "")
	}
	m.interrupt()
	if left := marked(t, work); len(left) > 0 {
		t.Errorf("%d processes are left: %v", len(left), left)
	}
	m.leftFolders(work, 0)
}

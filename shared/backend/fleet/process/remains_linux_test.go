package process

import (
	"sync"
	"syscall"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestTheKillOfARunnerEndsAllOfItsBoxAndNothingOfOthers(t *testing.T) {
	h, other := newHarness(t, nil), newHarness(t, nil)
	killed := h.run("a", "family")
	left := pids(t, h.line())
	commontest.EqualIn(t, "members of the family", 4, len(left))
	h.run("b", "family")
	other.run("b", "family")
	living := append(pids(t, h.line()), pids(t, other.line())...)

	list, _ := h.Tasks(t.Context())
	commontest.OK(t, syscall.Kill(list[0].PID, syscall.SIGKILL))
	commontest.EqualIn(t, "the task that ended", killed, h.end().ID)
	for _, pid := range left {
		if exists(pid) {
			t.Errorf("pid %d is still there, of %v", pid, left)
		}
	}
	for _, pid := range living {
		if !exists(pid) {
			t.Errorf("pid %d of another box was killed", pid)
		}
	}
}

func TestARunnerDiesWithTheProgramThatHoldsThePool(t *testing.T) {
	emulator := startRole("emulator", &syscall.SysProcAttr{})
	runner := pids(t, emulator.line)[0]
	commontest.OK(t, emulator.cmd.Process.Kill())
	_ = emulator.cmd.Wait()
	// This program has adopted the orphan, so it can wait for its end.
	var status syscall.WaitStatus
	_, err := syscall.Wait4(runner, &status, 0, nil)
	commontest.OK(t, err)
	commontest.EqualIn(t, "the runner ended with", syscall.SIGKILL, status.Signal())
}

func TestTasksThatEndTogetherDoNotReapOneAnother(t *testing.T) {
	pools := []*harness{newHarness(t, nil), newHarness(t, nil)}
	var all sync.WaitGroup
	for _, h := range pools {
		for _, token := range []string{"a", "b", "c", "d", "e"} {
			all.Go(func() { h.run(token, "exit3") })
		}
	}
	all.Wait()
	for _, h := range pools {
		for range 5 {
			commontest.EqualIn(t, "exit code", 3, h.end().ExitCode)
		}
	}
}

func TestParseStat(t *testing.T) {
	for stat, want := range map[string]proc{
		"7 (a) S 9 (b)) Z 1 7 6 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 991 1 2": {pid: 7, parent: 1, session: 6, start: 991, zombie: true},
		"7 (sh) S 1 7": {},
		"7 (sh) S x 7 6 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 991 1": {},
	} {
		got, ok := parseStat(7, []byte(stat))
		commontest.EqualIn(t, "can be read: "+stat, want.pid != 0, ok)
		if ok {
			commontest.EqualIn(t, stat, want, got)
		}
	}
}

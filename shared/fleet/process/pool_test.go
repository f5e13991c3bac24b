package process

import (
	"context"
	"errors"
	"maps"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
)

func TestRunWithOneTokenStartsOneProcess(t *testing.T) {
	h := newHarness(t, nil)
	ids := make(chan string, 20)
	var all sync.WaitGroup
	for range cap(ids) {
		all.Go(func() {
			id, err := h.Run(t.Context(), fleet.Task{ClientToken: "same", Env: map[string]string{roleEnv: "polite"}})
			if err != nil {
				t.Errorf("run: %v", err)
			}
			ids <- id
		})
	}
	all.Wait()
	first := <-ids
	for range cap(ids) - 1 {
		if id := <-ids; id != first {
			t.Errorf("one token gave the ids %s and %s", first, id)
		}
	}
	list, err := h.Tasks(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("tasks = %v, %v; want one", list, err)
	}
}

func TestRunWithTheTokenOfAStoppedTaskStartsNothing(t *testing.T) {
	h := newHarness(t, nil)
	id := h.run("a", "exit3")
	h.end()
	if again := h.run("a", "exit3"); again != id {
		t.Errorf("id = %s, want %s", again, id)
	}
	list, _ := h.Tasks(t.Context())
	if len(list) != 1 || list[0].State != fleet.Stopped {
		t.Errorf("tasks = %+v, want the stopped one alone", list)
	}
}

func TestARunningTaskIsListedWithWhatItIsFor(t *testing.T) {
	h := newHarness(t, nil)
	id := h.run("a", "polite")
	list, err := h.Tasks(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("tasks = %v, %v; want one", list, err)
	}
	got := list[0]
	if got.PID == 0 || !exists(got.PID) || got.Started.IsZero() {
		t.Errorf("pid %d, started %v: not a living process", got.PID, got.Started)
	}
	got.PID, got.Started = 0, time.Time{}
	want := fleet.Status{ID: id, ClientToken: "a", Box: "box-1", Server: "echo", State: fleet.Running}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("status (-want +got):\n%s", d)
	}
}

func TestTheExitOfARunnerIsSeenWithItsCode(t *testing.T) {
	h := newHarness(t, nil)
	id := h.run("a", "exit3")
	end := h.end()
	if end.ID != id || end.State != fleet.Stopped || end.ExitCode != 3 || end.Signal != "" || end.Stopped.Before(end.Started) {
		t.Errorf("status = %+v", end)
	}
	if end.Reason != "the runner exited with code 3" {
		t.Errorf("reason = %q", end.Reason)
	}
	if exists(end.PID) {
		t.Error("the runner was not reaped")
	}
}

func TestTheStartOfATaskIsToldBeforeItsEnd(t *testing.T) {
	told := make(chan fleet.Status, 2)
	h := newHarness(t, func(c *Config) {
		c.OnStart = func(s fleet.Status) { told <- s }
		c.OnStop = func(s fleet.Status) { told <- s }
	})
	id := h.run("a", "exit3")
	start, end := receive(t, "the start", told), receive(t, "the end", told)
	if start.ID != id || start.State != fleet.Running || start.PID == 0 || end.ID != id || end.State != fleet.Stopped {
		t.Errorf("told %+v, then %+v", start, end)
	}
}

func TestTheSignalThatEndedARunnerIsNamed(t *testing.T) {
	h := newHarness(t, nil)
	h.run("a", "stubborn")
	h.line()
	list, _ := h.Tasks(t.Context())
	if err := syscall.Kill(list[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	end := h.end()
	if end.Signal != "SIGKILL" || end.ExitCode != -1 || end.Reason != "the runner was killed by SIGKILL" {
		t.Errorf("status = %+v", end)
	}
}

func TestARunnerGetsACleanEnvironment(t *testing.T) {
	t.Setenv("SECRET_OF_THE_EMULATOR", "x")
	h := newHarness(t, func(c *Config) { c.Env = map[string]string{"PATH": "/bin", roleEnv: "overridden"} })
	id := h.run("a", "env")
	got := map[string]bool{}
	for _, v := range strings.Fields(h.line()) {
		got[v] = true
	}
	want := map[string]bool{"PATH=/bin": true, "GORACE=atexit_sleep_ms=0": true, roleEnv + "=env": true, TaskEnv + "=" + id: true}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("environment (-want +got):\n%s", d)
	}
}

func TestPreparedTaskIsStarted(t *testing.T) {
	h := newHarness(t, func(c *Config) {
		c.Prepare = func(t fleet.Task) fleet.Task {
			t.Env = maps.Clone(t.Env)
			t.Env["WORD"] = "prepared " + t.Server
			return t
		}
	})
	h.run("a", "env")
	if line := h.line(); !strings.Contains(line, "WORD=prepared ") {
		t.Errorf("the runner has %s", line)
	}
}

func TestOutputArrivesLineByLineAlsoWithoutALineEnd(t *testing.T) {
	h := newHarness(t, nil)
	h.run("a", "exit3")
	h.end()
	if got := []string{h.line(), h.line()}; got[0] != "one line" || got[1] != "no line end" {
		t.Errorf("lines = %q", got)
	}
}

func TestReasonOfARunnerThatFailsHasItsLastError(t *testing.T) {
	h := newHarness(t, nil)
	h.run("a", "fails")
	if end := h.end(); end.ExitCode != 1 || end.Reason != "the runner exited with code 1: open /x/lock: permission denied" {
		t.Errorf("status = %+v", end)
	}
}

func TestALongLineIsCutAndTheNextOneIsWhole(t *testing.T) {
	h := newHarness(t, nil)
	h.run("a", "long")
	if got := len(h.line()); got != maxLine {
		t.Errorf("a line of %d bytes, want %d", got, maxLine)
	}
	if got := h.line(); got != "after" {
		t.Errorf("next line = %q", got)
	}
}

func TestStopLetsARunnerEndByItself(t *testing.T) {
	h := newHarness(t, nil)
	id := h.run("a", "polite")
	h.line()
	if err := h.Stop(t.Context(), id, "idle"); err != nil {
		t.Fatal(err)
	}
	if end := h.end(); end.ExitCode != 0 || end.Signal != "" || end.Reason != "idle" {
		t.Errorf("status = %+v", end)
	}
}

func TestStopKillsARunnerThatIgnoresIt(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Grace = time.Millisecond })
	id := h.run("a", "stubborn")
	h.line()
	if err := h.Stop(t.Context(), id, "must go"); err != nil {
		t.Fatal(err)
	}
	if end := h.end(); end.Signal != "SIGKILL" || end.Reason != "must go" {
		t.Errorf("status = %+v", end)
	}
}

func TestStopOfAnUnknownOrStoppedTaskIsNoError(t *testing.T) {
	h := newHarness(t, nil)
	id := h.run("a", "exit3")
	end := h.end()
	for _, id := range []string{"", "nobody", id} {
		if err := h.Stop(t.Context(), id, "late"); err != nil {
			t.Errorf("stop %q: %v", id, err)
		}
	}
	if list, _ := h.Tasks(t.Context()); list[0].Reason != end.Reason {
		t.Errorf("a late stop changed the reason to %q", list[0].Reason)
	}
}

func TestAFullPoolRefusesUntilATaskStops(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.MaxTasks = 1 })
	id := h.run("a", "polite")
	h.line()
	_, err := h.Run(t.Context(), fleet.Task{ClientToken: "b"})
	if !errors.Is(err, fleet.ErrCapacity) {
		t.Fatalf("error = %v, want %v", err, fleet.ErrCapacity)
	}
	if err := h.Stop(t.Context(), id, ""); err != nil {
		t.Fatal(err)
	}
	h.end()
	h.run("b", "polite")
}

func TestRunRefusesWhatNoProcessCanGet(t *testing.T) {
	h := newHarness(t, nil)
	tests := map[string]fleet.Task{
		"no token":        {},
		"long token":      {ClientToken: strings.Repeat("x", fleet.MaxClientToken+1)},
		"equals in name":  {ClientToken: "t", Env: map[string]string{"A=B": ""}},
		"empty name":      {ClientToken: "t", Env: map[string]string{"": ""}},
		"zero in a value": {ClientToken: "t", Env: map[string]string{"A": "\x00"}},
	}
	for name, task := range tests {
		if _, err := h.Run(t.Context(), task); !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("%s: error = %v, want %v", name, err, fleet.ErrInvalid)
		}
	}
}

func TestARunnerThatCannotStartLeavesItsTokenFree(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Command = "/does/not/exist" })
	_, err := h.Run(t.Context(), fleet.Task{ClientToken: "a"})
	if !errors.Is(err, fleet.ErrUnavailable) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error = %v", err)
	}
	if list, _ := h.Tasks(t.Context()); len(list) != 0 {
		t.Errorf("tasks = %+v, want none", list)
	}
}

func TestCloseStopsAllAndRefusesMore(t *testing.T) {
	h := newHarness(t, nil)
	for _, token := range []string{"a", "b", "c"} {
		h.run(token, "polite")
		h.line()
	}
	if err := h.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if end := h.end(); end.ExitCode != 0 || exists(end.PID) {
			t.Errorf("status = %+v", end)
		}
	}
	if _, err := h.Run(t.Context(), fleet.Task{ClientToken: "d"}); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("run after close: %v", err)
	}
	if err := h.Close(t.Context()); err != nil {
		t.Errorf("second close: %v", err)
	}
}

func TestCloseKillsWhenItsTimeIsUp(t *testing.T) {
	h := newHarness(t, nil)
	h.run("a", "stubborn")
	h.line()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v", err)
	}
	if end := h.end(); exists(end.PID) {
		t.Error("the runner is still there")
	}
}

func TestAStoppedTaskIsForgottenAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(Config{})
		defer func() { _ = p.Close(t.Context()) }()
		old := &task{token: "a", status: fleet.Status{ID: "1", State: fleet.Stopped, Stopped: time.Now()}}
		p.byID["1"], p.byToken["a"], p.order = old, old, []*task{old}
		time.Sleep(fleet.Remembered)
		if list, _ := p.Tasks(t.Context()); len(list) != 1 {
			t.Error("forgotten too early")
		}
		time.Sleep(time.Second)
		if list, _ := p.Tasks(t.Context()); len(list) != 0 || len(p.byID)+len(p.byToken) != 0 {
			t.Errorf("still known: %+v", list)
		}
	})
}

package process

import (
	"context"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/fleettest"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// ledger collects the reports of a pool, so that a test can wait for the one of a task.
type ledger struct {
	mu    sync.Mutex
	chans map[string]chan fleet.Status
}

func (l *ledger) of(what, id string) chan fleet.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, ok := l.chans[what+id]
	if !ok {
		c = make(chan fleet.Status, 10)
		l.chans[what+id] = c
	}
	return c
}

func TestPoolKeepsTheContract(t *testing.T) {
	t.Run("itself", func(t *testing.T) { fleettest.Run(t, contract) })
	t.Run("inside", func(t *testing.T) { fleettest.Run(t, inThisProgram) })
}

func contract(t *testing.T) fleettest.Harness {
	f := contractOf(t, func(*Config) {})
	f.Kill = func(t *testing.T, id string) {
		list, err := f.Fleet.Tasks(t.Context())
		commontest.OK(t, err)
		at := slices.IndexFunc(list, func(s fleet.Status) bool { return s.ID == id })
		commontest.OK(t, syscall.Kill(list[at].PID, syscall.SIGKILL))
	}
	return f
}

func inThisProgram(t *testing.T) fleettest.Harness {
	return contractOf(t, func(c *Config) {
		c.Command = "/does/not/exist"
		c.Prepare = func(_ context.Context, t fleet.Task) (fleet.Task, error) {
			t.Place = Inside
			return t, nil
		}
		c.Inside = func(ctx context.Context, kill <-chan struct{}, env map[string]string, line func(string)) int {
			if env[roleEnv] == "exit3" {
				return 3
			}
			line("ready")
			select {
			case <-ctx.Done():
				return 0
			case <-kill:
				return -1
			}
		}
	})
}

func contractOf(t *testing.T, change func(*Config)) fleettest.Harness {
	t.Helper()
	l := &ledger{chans: map[string]chan fleet.Status{}}
	h := newHarness(t, func(c *Config) {
		c.MaxTasks = fleettest.Room
		c.OnStop = func(s fleet.Status) { l.of("end ", s.ID) <- s }
		c.Output = func(s fleet.Status, _ string) { l.of("line ", s.ID) <- s }
		change(c)
	})
	role := func(name string) map[string]string {
		return map[string]string{roleEnv: name, "GORACE": "atexit_sleep_ms=0"}
	}
	return fleettest.Harness{
		Fleet: h.Pool, Waits: role("polite"), Exits3: role("exit3"),
		Ready: func(t *testing.T, id string) { receive(t, "a line of the runner", l.of("line ", id)) },
		Ended: func(t *testing.T, id string) { receive(t, "the end of a task", l.of("end ", id)) },
	}
}

func TestATaskInsideThatDoesNotStopInTimeIsKilled(t *testing.T) {
	h := newHarness(t, func(c *Config) {
		c.Grace = time.Millisecond
		c.Inside = func(_ context.Context, kill <-chan struct{}, env map[string]string, line func(string)) int {
			line(`{"level":"ERROR","error":"stuck in ` + env[taskEnv] + `"}`)
			<-kill
			return 1
		}
	})
	id, err := h.Run(t.Context(), fleet.Task{ClientToken: "a", Place: Inside})
	if err != nil || fleet.PlaceOf(id) != Inside {
		t.Fatalf("task %s, %v", id, err)
	}
	h.line()
	commontest.Check(t, h.Close(t.Context()))
	if end := h.end(); end.ExitCode != 1 || end.PID != os.Getpid() || end.Reason != "the fleet was shut down" {
		t.Errorf("it ended as %+v", end)
	}
}

package process

import (
	"context"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/fleettest"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

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
	h := newHarness(t, func(c *Config) {
		c.MaxTasks = fleettest.Room
		change(c)
	})
	role := func(name string) map[string]string {
		return map[string]string{roleEnv: name, "GORACE": "atexit_sleep_ms=0"}
	}
	return fleettest.Harness{
		Fleet: h.Pool, Waits: role("polite"), Exits3: role("exit3"),
		Ready: func(*testing.T, string) {
			for h.line() != "ready" { // of a task that has ended
			}
		},
		Ended: func(t *testing.T, id string) { commontest.EqualIn(t, "the task that ended", id, h.end().ID) },
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
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	commontest.Check(t, h.Close(ctx))
	if end := h.end(); end.ExitCode != 1 || end.PID != os.Getpid() || end.Reason != "the fleet was shut down" {
		t.Errorf("it ended as %+v", end)
	}
}

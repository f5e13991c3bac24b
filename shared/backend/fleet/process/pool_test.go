package process

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestARunnerGetsTheEnvironmentOfItsPreparedTaskAndNoOther(t *testing.T) {
	t.Setenv("SECRET_OF_THE_EMULATOR", "x")
	h := newHarness(t, func(c *Config) {
		c.Env = map[string]string{"PATH": "/bin", roleEnv: "overridden"}
		c.Prepare = func(_ context.Context, t fleet.Task) (fleet.Task, error) {
			t.Env = maps.Clone(t.Env)
			t.Env["WORD"] = t.Server
			return t, nil
		}
	})
	id := h.run("a", "env")
	got := strings.Fields(h.line())
	slices.Sort(got)
	commontest.SameIn(t, "environment", []string{taskEnv + "=" + id, "GORACE=atexit_sleep_ms=0", "PATH=/bin", roleEnv + "=env", "WORD=echo"}, got)
}

func TestOutputArrivesLineByLineAndTheLastErrorIsTheReason(t *testing.T) {
	for role, want := range map[string]struct {
		lines  []string
		reason string
	}{
		"exit3": {[]string{"one line", "no line end"}, "the runner exited with code 3"},
		"long":  {[]string{strings.Repeat("x", maxLine), "after"}, "the runner exited with code 0"},
		"fails": {nil, "the runner exited with code 1: open /x/lock: permission denied"},
	} {
		t.Run(role, func(t *testing.T) {
			h := newHarness(t, nil)
			h.run("a", role)
			for _, line := range want.lines {
				commontest.EqualIn(t, "line", line, h.line())
			}
			commontest.EqualIn(t, "reason", want.reason, h.end().Reason)
		})
	}
}

func TestStopKillsARunnerThatIgnoresIt(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Grace = time.Millisecond })
	id := h.run("a", "stubborn")
	h.line()
	commontest.OK(t, h.Stop(t.Context(), id, "must go"))
	if end := h.end(); end.Signal != "SIGKILL" || end.Reason != "must go" {
		t.Errorf("status = %+v", end)
	}
}

func TestCloseStopsAllAndRefusesMore(t *testing.T) {
	h := newHarness(t, nil)
	for _, token := range []string{"a", "b", "c"} {
		h.run(token, "polite")
		h.line()
	}
	commontest.OK(t, h.Close(t.Context()))
	for range 3 {
		if end := h.end(); end.ExitCode != 0 || exists(end.PID) {
			t.Errorf("status = %+v", end)
		}
	}
	if _, err := h.Run(t.Context(), fleet.Task{ClientToken: "d"}); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("run after close: %v", err)
	}
	commontest.CheckIn(t, "second close", h.Close(t.Context()))
}

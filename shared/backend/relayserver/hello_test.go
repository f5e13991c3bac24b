package relayserver_test

import (
	"strconv"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestRunnerOfAnotherDefinitionIsAskedToRetire(t *testing.T) {
	for name, test := range map[string]struct {
		says, is string
		wants    bool
	}{
		"the same definition":   {"two", "two", false},
		"another":               {"one", "two", true},
		"a server that is gone": {"one", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAsylum(t)
			a.config.Definition = func(string) string { return test.is }
			f := a.handle(a.from(frame.TypeHello, func(f *frametest.Frame) { f.Link, f.Task, f.Digest = 2, "task", test.says }))
			if f.Type != frame.TypeWelcome || f.Retire != test.wants {
				t.Errorf("got %+v", f)
			}
		})
	}
}

// During a deployment, an old function may take the first hello of a runner that a new
// function has started. So the answer to a first hello never makes the runner retire.
func TestFirstHelloOfARunnerIsNotAnsweredWithRetire(t *testing.T) {
	a := newAsylum(t)
	a.config.Definition = func(string) string { return "one" }
	a.sleeps()
	a.waits()
	a.sweep()
	gen, err := strconv.ParseInt(a.task.Env[frame.EnvGeneration], 10, 64)
	commontest.OK(t, err)
	for link, retires := range []bool{false, true} {
		f := a.handle(frametest.Frame{
			Type: frame.TypeHello, Box: asylumBox, Gen: storage.Generation(gen), Runner: "r2", Link: int64(link) + 1, Task: "task-2",
			Token: a.task.Env[frame.EnvToken], Digest: "two",
		})
		if f.Type != frame.TypeWelcome || f.Retire != retires {
			t.Errorf("hello %d: got %+v", link+1, f)
		}
	}
}

// The record of box 0 says which boxes are full, until they fall asleep.
func TestFullBoxIsNotedUntilItSleeps(t *testing.T) {
	for n := range 3 {
		a := newAsylum(t)
		id := asylumBox.Numbered(n)
		if n > 0 {
			commontest.OK(t, a.store.SaveBox(t.Context(), storage.Box{ID: id, Tenant: "t", Server: "s", Gen: asylumGen, State: storage.Awake, Conn: "c", Runner: "r", Link: 1}))
		}
		needs := 0
		a.config.MakeRoom = func() { needs++ }
		full := func(kind frame.Type, phase string) uint32 {
			a.handle(a.from(kind, func(f *frametest.Frame) { f.Box, f.Phase, f.Session = id, phase, "s1" }))
			return a.box().Full
		}
		a.conn = "another"
		commontest.EqualIn(t, "full, says a stranger", 0, full(frame.TypeStatus, frame.PhaseFull))
		full(frame.TypeStatus, frame.PhaseMemory)
		a.conn = "c"
		for range 2 {
			commontest.EqualIn(t, "full", uint32(1)<<n, full(frame.TypeStatus, frame.PhaseFull))
		}
		full(frame.TypeStatus, frame.PhaseMemory)
		commontest.EqualIn(t, "times that room was made", 1, needs)
		commontest.EqualIn(t, "full, asleep", 0, full(frame.TypeBye, ""))
		commontest.EqualIn(t, "full, said before the sleep", 0, full(frame.TypeStatus, frame.PhaseFull))
	}
}

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
	now := map[string]string{"s": "two"}
	for name, test := range map[string]struct {
		digest string
		link   int64
		wants  bool
		with   func(string) string
	}{
		"the same definition":      {"two", 2, false, func(s string) string { return now[s] }},
		"another":                  {"one", 2, true, func(s string) string { return now[s] }},
		"another, with a ping":     {"one", 1, true, func(s string) string { return now[s] }},
		"a server that is gone":    {"one", 2, true, func(string) string { return "" }},
		"a runner that says none":  {"", 2, false, func(s string) string { return now[s] }},
		"a host that has no names": {"one", 2, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAsylum(t)
			a.config.Definition = test.with
			f := a.handle(frametest.Frame{
				Type: frame.TypeHello, Box: asylumBox, Gen: asylumGen, Runner: "r", Link: test.link, Task: "task", Digest: test.digest,
			})
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
	gen, err := strconv.ParseInt(a.env[frame.EnvGeneration], 10, 64)
	commontest.OK(t, err)
	for link, retires := range []bool{false, true} {
		f := a.handle(frametest.Frame{
			Type: frame.TypeHello, Box: asylumBox, Gen: storage.Generation(gen), Runner: "r2", Link: int64(link) + 1, Task: "task-2",
			Token: a.env[frame.EnvToken], Digest: "two",
		})
		if f.Type != frame.TypeWelcome || f.Retire != retires {
			t.Errorf("hello %d: got %+v", link+1, f)
		}
	}
}

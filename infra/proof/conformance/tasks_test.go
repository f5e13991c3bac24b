//go:build conformance

package conformance

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// The suite does not score the scenarios about tasks, and they belong to no version:
// --force runs them. The scenario about notifications skips itself, because the suite
// does not yet read the stream with the notifications. The test lists the tools first, as
// clients do, so that Dormouse knows their task support. At a group nobody has listed them.
func TestTasksScenariosPass(t *testing.T) {
	suite := installSuite(t)
	legacy := server{Command: buildServer(t, "legacy", "./testdata/tasks", "tasks")}
	urls := startDormouse(t, map[string]server{"legacy": legacy, "native": nativeServer("tasks")})
	self, err := os.Executable()
	commontest.OK(t, err)
	another := startDormouse(t, map[string]server{"legacy": legacy, "other": {Command: self, Args: []string{slowServer}}})
	urls["group"] = plainGroup("legacy", another["legacy"])
	var rows []row
	for _, name := range []string{"group", "legacy", "native"} {
		t.Run(name, func(t *testing.T) {
			if name != "group" {
				listTools(t, urls[name])
			}
			rows = append(rows, row{name + ", tasks-" + revision2026, runTasks(t, suite, name, urls[name])})
		})
	}
	t.Logf("lanes:\n%s", table(rows))
}

func runTasks(t *testing.T, suite suite, server, url string) (all []scenario) {
	t.Helper()
	for _, name := range suite.requirements(t, revision2026).notScored {
		if !strings.HasPrefix(name, "tasks-") {
			continue
		}
		want := requirements{scored: []string{name}}
		results := suite.run(t, server+"-"+name, url, want, "--scenario", name, "--spec-version", revision2026, "--force")
		all = append(all, results...)
		if name == "tasks-status-notifications" {
			continue
		}
		for _, problem := range problemsOf(results) {
			t.Error(problem)
		}
	}
	if !slices.ContainsFunc(all, func(s scenario) bool { return s.name == "tasks-lifecycle" }) {
		t.Errorf("the suite has only %d scenarios about tasks", len(all))
	}
	return all
}

// listTools asks a server for its tools, in a request of a client of 2026-07-28.
func listTools(t *testing.T, url string) {
	t.Helper()
	if status, answer := ask(t, url, "tools/list"); !strings.Contains(string(answer), `"tools"`) {
		t.Fatalf("tools/list was answered with %s %s", status, answer)
	}
}

//go:build e2e

package dormouse_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// boxesOf returns a machine that hosts the test server under some names, each with
// its x-dormouse.box and flags.
func boxesOf(t *testing.T, boxes map[string]map[string]any, flags ...string) *machine {
	t.Helper()
	program := stdio(t)
	file := map[string]any{}
	for name, box := range boxes {
		file[name] = map[string]any{
			"command": program, "args": append([]string{"-name", name}, flags...), "x-dormouse": map[string]any{"box": box},
		}
	}
	return machineOf(t, file)
}

func TestE2ELogsOfASessionThatSharesItsProcess(t *testing.T) {
	t.Parallel()
	m := boxesOf(t, map[string]map[string]any{"all": {"scope": "shared"}, "mine": {"scope": "principal"}})
	m.start()
	for _, server := range []string{"all", "mine"} {
		var said []string
		for range 2 {
			c := m.session(server)
			c.whoami()
			out, err := m.command("logs", c.session[:12]).CombinedOutput()
			if err != nil || !strings.HasPrefix(string(out), "==> "+server+", process ") || strings.Count(string(out), "==> ") != 1 {
				t.Errorf("logs of a session of %s: %v: %s", server, err, out)
			}
			head, _, _ := strings.Cut(string(out), "\n")
			said = append(said, head)
		}
		if said[0] != said[1] {
			t.Errorf("sessions of %s find %q and %q", server, said[0], said[1])
		}
	}
}

func TestE2EPSShowsThePhaseInWhichAProcessFailed(t *testing.T) {
	t.Parallel()
	m := boxesOf(t, map[string]map[string]any{"one": {}}, "-exit-while", filepath.Join(t.TempDir(), "is-never-there"))
	m.start()
	c := m.session("one")
	pid := c.whoami().PID
	m.psText("awake", fmt.Sprint(pid))
	m.kill(m.only("stdio"))
	m.eventually(patience, "ps shows the failure", func() bool {
		r := m.ps()
		for _, p := range r.Processes {
			if p.State == "exited" && p.Phase == "runtime" && p.Process == c.session {
				return len(r.Servers) == 1 && r.Servers[0].State == "failed" && r.Servers[0].Boxes == 1
			}
		}
		return false
	})
	c.whoami()
	for _, p := range m.ps().Processes {
		if p.State != "ready" || p.Restarts != 1 {
			t.Errorf("after it was started again ps shows %+v", p)
		}
	}
	m.psText("awake", "LAST-CALL")
}

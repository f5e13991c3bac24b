//go:build e2e

package dormouse_test

import (
	"cmp"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// soakTime is the variable with the length of TestE2ESoak.
const soakTime = "DORMOUSE_TEST_SOAK"

// soakListed is the variable that has the server of one tenant reach a list of hosts only, so
// that it is sealed, if it is not "". make chaos sets it.
const soakListed = "DORMOUSE_TEST_SOAK_LISTED"

// soakSessions is how many sessions each tenant has.
const soakSessions = 2

// Sessions of two tenants, one with a server inside of dormouse and one with a runner, make calls
// while dormouse itself, its runners and servers are killed at random, so look into a failure with
// the log. Dormouse is killed only in the first half, so that growth in the second half shows. No
// call runs twice, each accepted call ends once, in its result or in an error with a phase, and each
// session continues. Memory and descriptors return to their first values.
func TestE2ESoak(t *testing.T) {
	t.Parallel()
	lasts, err := time.ParseDuration(cmp.Or(os.Getenv(soakTime), "12s"))
	commontest.OK(t, err)
	tenants := []string{"crimson", "azure"}
	logs := filepath.Join(stdioFolder, "soak") // a server with a runner is another user
	mkdir(t, logs)
	commontest.OK(t, os.Chmod(logs, 0o777))
	where, box := filepath.Join(logs, "azure"), map[string]any{"memory_mb": 512}
	write(t, where, "")
	commontest.OK(t, os.Chmod(where, 0o666)) // each of its sessions has a user
	listed := os.Getenv(soakListed) != ""
	switch {
	case listed:
		where, box = "${workspaceFolder}/azure", map[string]any{"network": []string{"api.github.com", "*.slack.com:443"}, "host_path": logs, "host_path_mode": "rw"}
	case os.Getenv(boxesVariable) == "lambda":
		box = map[string]any{} // the folder of such a box is closed to the other user
	}
	m := machineOf(t, map[string]any{
		"crimson": map[string]any{"command": stdio(t), "args": []string{"-calls", filepath.Join(logs, "crimson")}},
		"azure":   map[string]any{"command": stdio(t), "args": []string{"-calls", where}, "x-dormouse": map[string]any{"box": box}},
	})
	if listed {
		m.env = append(m.env, "PATH="+filepath.Dir(keeper(t))+":"+os.Getenv("PATH"))
	}
	m.ours(`{"profile": "none"}`) // the servers note their calls outside of their workspaces
	m.start("--access", "keys")
	var clients []*client
	for _, name := range tenants {
		key := m.keys("create", "ada", "--tenant", name, "--server", name)
		for range soakSessions {
			c := m.as(key, name)
			c.mark = name
			clients = append(clients, c)
		}
	}
	over, done := time.After(lasts), make(chan struct{})
	made := keepCalling(clients, done)
	killed := m.killForAWhile(lasts/2, over)
	close(done)
	calls := made()
	alive(t, clients)
	ran := 0
	for _, name := range tenants {
		all := ranOnce(t, filepath.Join(logs, name))
		ran += len(all)
		for _, tag := range all {
			if !strings.HasPrefix(tag, name) {
				t.Errorf("a server of %s was told to execute %q", name, tag)
			}
		}
	}
	after := m.settled(killed.start.plus(64<<20, 60))
	t.Logf("killed: dormouse %d, runners and servers %d times; %d calls made (also into a dormouse that was down), %d ran", killed.hosts, killed.others, calls, ran)
	t.Logf("half way: %s; when all was over: %s", killed.start, after)
}

// kills counts the kills, and keeps what the machine used when dormouse was killed for the
// last time.
type kills struct {
	hosts, others int
	start         taken
}

// killForAWhile kills four processes a second, every fourth of which is dormouse itself, until half
// has passed, and then one of the others a second until over.
func (m *machine) killForAWhile(half time.Duration, over <-chan time.Time) (k kills) {
	m.t.Helper()
	begun, settled := time.Now(), false
	tick := time.NewTicker(time.Second / 4)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-over:
			if !settled {
				k.start = m.taken()
			}
			return k
		case <-tick.C:
		}
		hosts := time.Since(begun) < half
		if hosts && n%4 == 3 {
			m.restart()
			k.hosts++
			continue
		}
		if !hosts && !settled && len(m.those("stdio", runner.Keeper)) > soakSessions {
			k.start, settled = m.taken(), true
		}
		if !hosts && n%4 > 0 {
			continue // or nothing would live long enough to be measured
		}
		if all := slices.DeleteFunc(m.processes(), func(p process) bool { return p.program == "dormouse" }); len(all) > 0 {
			m.kill(all[rand.IntN(len(all))])
			k.others++
		}
	}
}

func (k taken) plus(memory, files int) taken {
	return taken{k.memory + memory, k.files + files, k.rows + 2*soakSessions*sessionRows}
}

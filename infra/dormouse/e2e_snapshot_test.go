//go:build e2e

package dormouse_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/backend/bucket/buckettest"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// The server writes its knowledge graph into a file. It is the published server from
// npm.
func TestE2EMemoryServerKeepsItsFile(t *testing.T) {
	t.Parallel()
	for name, box := range map[string]map[string]any{
		"plain": {}, "sandbox": {"profile": "default"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			memorySleepsAndWakes(t, box)
		})
	}
}

func memorySleepsAndWakes(t *testing.T, box map[string]any) {
	m := machineOf(t, map[string]any{"memory": map[string]any{
		"command": "npx", "args": []string{"-y", "@modelcontextprotocol/server-memory@2026.8.31"},
		"env":        map[string]string{"MEMORY_FILE_PATH": "${workspaceFolder}/memory.jsonl"},
		"x-dormouse": map[string]any{"box": box},
	}})
	m.start(sleepy()...)
	c := m.session("memory")
	c.remember("Dormouse", "sleeps between messages")
	m.asleep()
	c.remember("Hatter", "does not sleep") // by another box
	m.asleep()

	if m.interrupt().ExitCode() != 0 {
		t.Error("dormouse run did not end well")
	}
	m.start(sleepy()...)
	c = m.again(c, "memory")
	graph := c.structured("read_graph", "")
	for _, want := range []string{"Dormouse", "sleeps between messages", "Hatter", "does not sleep"} {
		if !strings.Contains(graph, want) {
			t.Errorf("after two sleeps and a restart the graph lacks %q: %s", want, graph)
		}
	}
	if other := m.session("memory").structured("read_graph", ""); strings.Contains(other, "Dormouse") {
		t.Errorf("another session reads it: %s", other)
	}
	commontest.EqualIn(t, "snapshots, want that of the first session", 1, m.snapshots())
	c.leave()
	m.eventually(patience, "the snapshot of an ended session is gone", func() bool { return m.snapshots() == 0 })
	m.asleep()
}

func (c *client) remember(name, what string) {
	c.t.Helper()
	arguments := fmt.Sprintf(`{"entities":[{"name":%q,"entityType":"guest","observations":[%q]}]}`, name, what)
	if got := c.structured("create_entities", arguments); !strings.Contains(got, name) {
		c.t.Fatalf("create_entities: %s", got)
	}
}

// structured calls a tool and returns its result unchanged.
func (c *client) structured(tool, arguments string) string {
	c.t.Helper()
	answer := c.outcome(tool, arguments)
	if answer.Result == nil {
		c.t.Fatalf("%s: %s", tool, answer.Error)
	}
	return string(answer.Result)
}

// snapshots counts the files in the machine's folder of snapshots.
func (m *machine) snapshots() int {
	m.t.Helper()
	all, err := filepath.Glob(filepath.Join(m.data, "snapshots", "*", "current"))
	commontest.OK(m.t, err)
	return len(all)
}

func TestE2EKilledServerLeavesTheLastWholeSnapshot(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"stdio", "runner"} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, servers{"one": {"-calls", "${workspaceFolder}/notes"}})
			if program == "runner" {
				m.withRunners()
			}
			m.start(sleepy()...)
			c := m.session("one")
			c.text("count", `{"tag":"whole"}`)
			m.asleep()

			gate := filepath.Join(m.tmp, "never")
			broken := make(chan error, 1)
			go func() {
				all, err := c.call("work", fmt.Sprintf(`{"tag":"half","gate":%q}`, gate))
				if n := len(all); err == nil && (n == 0 || all[n-1].Error == nil) {
					err = fmt.Errorf("the call of a killed server ended with %v", all)
				}
				broken <- err
			}()
			m.eventually(patience, "the server writes", func() bool {
				all := m.those("stdio")
				return len(all) == 1 && slices.Contains(m.notes(all[0]), "half")
			})
			if got := m.notes(m.only("stdio")); !slices.Equal(got, []string{"whole", "half"}) {
				t.Errorf("the server that was woken has %v", got)
			}
			m.kill(m.only(program))
			commontest.Check(t, <-broken)
			m.asleep()

			c.text("count", `{"tag":"next"}`)
			if got := m.notes(m.only("stdio")); !slices.Equal(got, []string{"whole", "next"}) {
				t.Errorf("after the next sleep the server has %v, want what was saved last, and what came since", got)
			}
			m.asleep()
		})
	}
}

func TestE2EWorkspaceIsKeptInABucket(t *testing.T) {
	t.Parallel()
	s3 := buckettest.New(t)
	m := newMachine(t, servers{"one": {"-calls", "${workspaceFolder}/notes"}}).asPrograms()
	m.env = append(
		m.env, "DORMOUSE_SNAPSHOTS=s3:kept/snapshots?region="+buckettest.Region+"&endpoint="+s3.Endpoint(),
		"AWS_ACCESS_KEY_ID="+buckettest.KeyID, "AWS_SECRET_ACCESS_KEY="+buckettest.Secret, "AWS_SESSION_TOKEN="+buckettest.Token,
	)
	m.start(sleepy()...)
	t.Cleanup(func() {
		for _, r := range s3.Requests() {
			if strings.Contains(r, " 403") {
				t.Errorf("the bucket refused %s", r)
			}
		}
	})
	c := m.session("one")
	for _, tag := range []string{"first", "second", "third"} {
		c.text("count", fmt.Sprintf(`{"tag":%q}`, tag))
		if tag == "third" {
			if got := m.notes(m.only("stdio")); !slices.Equal(got, []string{"first", "second", "third"}) {
				t.Errorf("after two sleeps the server has %v", got)
			}
		}
		m.asleep()
	}
	if got := s3.Objects(); len(got) != 2 {
		t.Errorf("kept are %v, want the last snapshot and the pointer to it", got)
	}
	c.leave()
	// The box sleeps, so the sweep removes its snapshot. A machine sweeps at its start.
	if m.interrupt().ExitCode() != 0 {
		t.Error("dormouse run did not end well")
	}
	m.start(sleepy()...)
	m.eventually(patience, "the snapshot of an ended session is gone", func() bool { return len(s3.Objects()) == 0 })
}

// notes returns the lines of the file that a server has in its workspace.
func (m *machine) notes(p process) []string {
	m.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cwd/notes", p.pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}

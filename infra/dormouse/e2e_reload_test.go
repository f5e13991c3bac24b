//go:build e2e

package dormouse_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// save writes the servers file of a running machine: the flags of the test server by
// name. It returns the event that says what has changed.
func (m *machine) save(hosted servers) event {
	m.t.Helper()
	return m.saveFile(hosted.file(m.t))
}

// saveFile is save with the whole content of mcpServers.
func (m *machine) saveFile(file map[string]any) event {
	m.t.Helper()
	text, err := json.Marshal(map[string]any{"mcpServers": file})
	commontest.OK(m.t, err)
	before := m.count("servers.changed")
	write(m.t, m.servers, string(text))
	return m.changed(before)
}

// changed waits for a servers.changed event after the first ones, whose number is before.
func (m *machine) changed(before int) event {
	m.t.Helper()
	return m.await(patience, "the file is taken", func(e event) bool {
		if e.Kind == "servers.changed" {
			before--
		}
		return before < 0
	})
}

// addressOf returns the URL of a server that was not there at the start.
func (m *machine) addressOf(name string) string {
	for known, url := range m.urls {
		return strings.Replace(url, "/"+known+"/", "/"+name+"/", 1)
	}
	return ""
}

// held is a call that waits for a file.
type held struct {
	t    *testing.T
	gate string
	done chan error
}

// hold begins a call and returns when its process has it.
func (m *machine) hold(c *client, calls string) *held {
	m.t.Helper()
	h := &held{t: m.t, gate: filepath.Join(m.t.TempDir(), "gate"), done: make(chan error, 1)}
	go func() {
		messages, err := c.call("work", fmt.Sprintf(`{"gate":%q,"tag":"held"}`, h.gate))
		if err == nil && textOf(messages[len(messages)-1]) != "worked" {
			err = fmt.Errorf("the call ended with %s", messages[len(messages)-1].Raw)
		}
		h.done <- err
	}()
	m.eventually(patience, "the call is in the process", func() bool { return strings.Contains(read(m.t, calls), "held") })
	return h
}

// finish lets the call end, and checks that it succeeds.
func (h *held) finish() {
	h.t.Helper()
	write(h.t, h.gate, "")
	commontest.Check(h.t, <-h.done)
}

// everyway runs a test with handlers in this process, and with function programs.
func everyway(t *testing.T, test func(t *testing.T, machine func(servers) *machine)) {
	t.Parallel()
	for name, programs := range map[string]bool{"inside": false, "as programs": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, func(s servers) *machine {
				m := newMachine(t, s)
				m.programs = programs
				return m
			})
		})
	}
}

func TestE2EReloadRemovesAServer(t *testing.T) {
	everyway(t, func(t *testing.T, machine func(servers) *machine) {
		calls := filepath.Join(t.TempDir(), "calls")
		m := machine(servers{"old": {"-calls", calls}, "other": nil})
		m.start()
		c := m.session("old")
		call := m.hold(c, calls)
		if e := m.save(servers{"other": nil}); strings.Join(e.Removed, " ") != "old" {
			t.Errorf("the event is %+v", e)
		}
		if status, err := m.client("old").status("POST", initialize); status != 404 || err != nil {
			t.Errorf("a new client gets %d, %v", status, err)
		}
		if status, err := c.status("POST", `{"jsonrpc":"2.0","id":9,"method":"ping"}`); status != 404 || err != nil {
			t.Errorf("the session gets %d, %v", status, err)
		}
		call.finish()
		m.eventually(patience, "its processes have ended", func() bool { return len(m.those("stdio", "runner")) == 0 })
		if e := m.save(servers{"old": {"-calls", calls}, "other": nil}); strings.Join(e.Added, " ") != "old" {
			t.Errorf("the event is %+v", e)
		}
		commontest.EqualIn(t, "the session counts", "1", c.text("count", ""))
	})
}

// A variable of .env is part of what a server is started with.
func TestE2EReloadChangesAServer(t *testing.T) {
	everyway(t, func(t *testing.T, machine func(servers) *machine) {
		calls := filepath.Join(t.TempDir(), "calls")
		m := machine(servers{"one": {"-calls", calls, "-name", "${OWN_NAME}"}, "other": nil})
		env := filepath.Join(filepath.Dir(m.servers), ".env")
		write(t, env, "OWN_NAME=before\n")
		m.start()
		c, idle, other := m.session("one"), m.session("one"), m.session("other")
		before := idle.whoami()
		neighbour := other.whoami().PID
		call := m.hold(c, calls)
		write(t, env, "OWN_NAME=changed\n")
		if e := m.changed(0); strings.Join(e.Changed, " ") != "one" {
			t.Errorf("the event is %+v", e)
		}
		m.awaitLine(m.log, patience, "the runner hears of it", func(line string) bool { return strings.Contains(line, `"retiring`) })
		call.finish()
		for name, c := range map[string]*client{"that called": c, "that was idle": idle} {
			if got := c.whoami(); got.Name != "changed" || got.PID == before.PID {
				t.Errorf("the session %s has %+v, before it was %+v", name, got, before)
			}
		}
		if got := other.whoami().PID; got != neighbour {
			t.Errorf("the process of the other server is %d, was %d", got, neighbour)
		}
	})
}

//go:build e2e

package dormouse_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

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

// A variable of .env is part of what a server is started with.
func TestE2EReloadChangesAServer(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": {"-name", "${OWN_NAME}"}, "other": nil})
	env := filepath.Join(filepath.Dir(m.servers), ".env")
	write(t, env, "OWN_NAME=before\n")
	m.start()
	c, idle, other := m.session("one"), m.session("one"), m.session("other")
	before := idle.whoami()
	neighbour := other.whoami().PID
	call := c.begin()
	call.progress(t, 1, 3)
	write(t, env, "OWN_NAME=changed\n")
	commontest.EqualIn(t, "the event", "one", strings.Join(m.changed(0).Changed, " "))
	m.awaitLine(m.log, patience, "the runner hears of it", func(line string) bool { return strings.Contains(line, `"retiring`) })
	call.open(t)
	if end, err := call.response(call.id); err != nil || textOf(end) != "worked" {
		t.Errorf("the call ended with %s, %v", end.Raw, err)
	}
	for name, c := range map[string]*client{"that called": c, "that was idle": idle} {
		if got := c.whoami(); got.Name != "changed" || got.PID == before.PID {
			t.Errorf("the session %s has %+v, before it was %+v", name, got, before)
		}
	}
	commontest.EqualIn(t, "the process of the other server", neighbour, other.whoami().PID)
}

//go:build e2e

package dormouse_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// modern sends a request of the era without sessions and returns the result.
func (c *client) modern(method string) json.RawMessage {
	c.t.Helper()
	return c.served(method, "", "", "{}").Result
}

// list asks for the tools in a request of a client with a session.
func (c *client) list() json.RawMessage {
	c.t.Helper()
	s, err := c.post(`{"jsonrpc":"2.0","id":"list","method":"tools/list"}`)
	if err != nil {
		c.t.Fatal(err)
	}
	defer s.close()
	m, err := s.response(`"list"`)
	if err != nil || m.Result == nil {
		c.t.Fatalf("tools/list was answered with %s, %v", m.Raw, err)
	}
	return bytes.Clone(m.Result)
}

func TestE2EHandshakeAndListsOfASleepingServerWakeNothing(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	m.start(sleepy()...)
	legacy := m.session("one").list()
	modern := m.client("one").modern("tools/list")
	m.asleep()
	wakes := m.count("box.wake")

	c := m.client("one")
	if versions := wire.Lookup(c.modern("server/discover"), "supportedVersions"); !strings.Contains(string(versions), wire.V20260728) {
		t.Errorf("discover tells of the versions %s", versions)
	}
	if got := c.modern("tools/list"); string(got) != string(modern) {
		t.Errorf("a modern client gets %s, and got %s", got, modern)
	}
	if got := m.session("one").list(); string(got) != string(legacy) {
		t.Errorf("a client with a session gets %s, and got %s", got, legacy)
	}
	if n := m.count("box.wake") - wakes; n != 0 {
		t.Errorf("%d boxes were woken", n)
	}
	if got := m.session("one").text("count", ""); got != "1" {
		t.Errorf("the counter says %s after the first call, want 1", got)
	}
}

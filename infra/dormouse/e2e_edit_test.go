//go:build e2e

package dormouse_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// does executes a command in the folder of the servers file, and returns what it printed.
func (m *machine) does(verb string, args ...string) string {
	m.t.Helper()
	out, err := m.tries(verb, args...)
	if err != nil {
		m.t.Fatalf("dormouse %s: %v: %s", verb, err, out)
	}
	return out
}

// tries is does for a command that may fail.
func (m *machine) tries(verb string, args ...string) (string, error) {
	cmd := m.command(verb, args...)
	if slices.Contains([]string{"check", "disable", "enable", "remove"}, verb) {
		cmd.Args = append(cmd.Args[:2:2], args...) // they have no data folder
	}
	cmd.Dir = filepath.Dir(m.servers)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Where callers need keys, the lists of a server that is added to a running machine come from the
// record that add has made, for all principals. add starts the server once.
func TestE2EAddedServerAnswersAllPrincipalsWithoutAProcess(t *testing.T) {
	t.Parallel()
	program := stdio(t)
	m := newMachine(t, servers{"zero": nil})
	m.start("--access", "keys")
	keys := map[string]string{
		"ada": m.keys("create", "ada", "--server", "*"),
		"bob": m.keys("create", "bob", "--server", "*"),
	}
	commontest.Contains(t, "add said", ": 1 tool in ", m.does("add", "one", "--", program, "-name", "one"))
	commontest.EqualIn(t, "processes have started", 1, m.count("server.ready"))
	m.urls["one"] = m.addressOf("one")
	woken := m.count("box.wake")
	for who, key := range keys {
		c := m.client("one")
		c.key = key
		commontest.OK(t, c.open(`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"first","version":"1"}}`))
		commontest.EqualIn(t, who+" gets the tools", "echo", toolsIn(c.list()))
	}
	commontest.EqualIn(t, "boxes were woken", 0, m.count("box.wake")-woken)
	for _, p := range m.those("stdio") {
		t.Errorf("there is %v", p)
	}
}

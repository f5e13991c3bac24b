//go:build e2e

package dormouse_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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

// dormouse add keeps a server's answers, so the server's first clients wake no process.
func TestE2EAddedServerAnswersItsFirstClientsWithoutAProcess(t *testing.T) {
	t.Parallel()
	m := newMachine(t, nil)
	program := stdio(t)
	said := m.does("add", "one", "-e", "SECRET=hunter2", "--", program, "-name", "one")
	if !strings.Contains(said, "added one") || !strings.Contains(said, ": 1 tool in ") || strings.Contains(said, "hunter2") {
		t.Errorf("add said %s", said)
	}
	if left := m.processes(); len(left) > 0 {
		t.Fatalf("add left %v", left)
	}
	// A program beside the file is found, wherever the machine is started.
	link(t, program, filepath.Join(filepath.Dir(m.servers), "beside"))
	m.does("add", "beside", "--", "./beside", "-name", "beside")
	m.start()
	commontest.EqualIn(t, "the server beside the file is called", "beside", m.session("beside").whoami().Name)
	woken := m.count("box.wake")
	c := m.client("one") // a client that can do more may see other tools, so its first list starts a process
	commontest.OK(t, c.open(`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"first","version":"1"}}`))
	commontest.Contains(t, "a client gets", `"echo"`, string(c.list()))
	commontest.EqualIn(t, "boxes were woken", 0, m.count("box.wake")-woken)
	for _, p := range m.those("stdio") {
		if p.server == "one" {
			t.Errorf("there is %v", p)
		}
	}
}

// Where callers need keys, the lists of a server that is added to a running machine come
// from the record too, for all principals. add starts the server once.
func TestE2EAddedServerAnswersAllPrincipalsWithoutAProcess(t *testing.T) {
	t.Parallel()
	program := stdio(t)
	m := newMachine(t, servers{"zero": nil})
	m.start("--access", "keys")
	keys := map[string]string{
		"ada": m.keys("create", "ada", "--server", "*"),
		"bob": m.keys("create", "bob", "--server", "*"),
	}
	m.does("add", "one", "--", program, "-name", "one")
	commontest.EqualIn(t, "processes have started", 1, m.count("server.ready"))
	m.urls["one"] = m.addressOf("one")
	if out, err := m.command("list").CombinedOutput(); err != nil || !regexp.MustCompile(`(?m)^one +asleep +1 `).Match(out) {
		t.Errorf("%v: the list is\n%s", err, out)
	}
	woken := m.count("box.wake")
	for who, key := range keys {
		t.Run(who, func(t *testing.T) {
			c := m.client("one")
			c.key = key
			commontest.OK(t, c.open(`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"first","version":"1"}}`))
			if list := c.list(); !strings.Contains(string(list), `"echo"`) {
				t.Errorf("%s gets %s", who, list)
			}
		})
	}
	commontest.EqualIn(t, "boxes were woken", 0, m.count("box.wake")-woken)
	for _, p := range m.those("stdio") {
		t.Errorf("there is %v", p)
	}
}

// The files of five clients are imported, and then a server of each is hosted.
func TestE2EImportedServersAreHosted(t *testing.T) {
	t.Parallel()
	m := newMachine(t, nil)
	program := stdio(t)
	theirs := t.TempDir()
	for name, text := range map[string]string{
		".vscode/mcp.json": `{
  // Asked for once.
  "inputs": [{"type": "promptString", "id": "my-name", "description": "Name", "default": "vscode"}],
  "servers": {
    "vscode": {"command": "${workspaceFolder}/bin/own", "args": ["-name", "${input:my-name}"], "envFile": "${workspaceFolder}/more.env"},
    "remote": {"type": "http", "url": "https://example.com/mcp"},
  },
}`,
		"more.env":                   "MORE=1\n",
		".cursor/mcp.json":           `{"mcpServers": {"cursor": {"command": "bin/own", "args": ["-name", "${env:CURSOR_NAME}"]}}}`,
		"claude_desktop_config.json": fmt.Sprintf(`{"mcpServers": {"claude": {"command": %q, "args": ["-name", "claude"], "env": {"API_KEY": "hunter2"}}}}`, program),
		"config.toml":                fmt.Sprintf("[mcp_servers.codex]\ncommand = %q\nargs = ['-name', 'codex']\nstartup_timeout_sec = 20\n", program),
		"server.json": `{"name": "com.example/registry", "version": "1.0.0", "packages": [{"registryType": "oci", "identifier": "example/registry", "version": "1.0.0",
  "transport": {"type": "stdio"}, "environmentVariables": [{"name": "REGISTRY_KEY", "isRequired": true, "isSecret": true}]}]}`,
	} {
		write(t, filepath.Join(theirs, name), text)
	}
	executable(t, filepath.Join(theirs, "path", "docker"), "#!/bin/sh\nexec "+program+" -name registry\n")
	link(t, program, filepath.Join(theirs, "bin", "own"))
	m.env = []string{"CURSOR_NAME=cursor", "REGISTRY_KEY=r", "PATH=" + filepath.Join(theirs, "path") + ":" + os.Getenv("PATH")}
	for _, file := range []string{".vscode/mcp.json", ".cursor/mcp.json", "claude_desktop_config.json", "config.toml", "server.json"} {
		if said := m.does("import", filepath.Join(theirs, file)); strings.Contains(said, "hunter2") {
			t.Errorf("import of %s said %s", file, said)
		}
	}
	m.start()
	for _, name := range []string{"vscode", "cursor", "claude", "codex", "registry"} {
		c := m.session(name)
		if list := c.list(); !strings.Contains(string(list), `"echo"`) {
			t.Errorf("%s lists %s", name, list)
		}
		if got := c.whoami().Name; got != name {
			t.Errorf("%s is called %s", name, got)
		}
	}
}

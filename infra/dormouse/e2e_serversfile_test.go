//go:build e2e

package dormouse_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// The functions get the servers that dormouse run has read. If a function starts while the
// file is half saved, it hosts the same servers as before.
func TestE2EFunctionsDoNotReadTheServersFile(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil}).asPrograms()
	m.start()
	c := m.session("one")
	if got := c.text("count", ""); got != "1" {
		t.Fatalf("counts %s", got)
	}
	write(t, m.servers, `{"mcpServers": {"one": {"comm`)
	m.killFunctions("http", "relay")
	commontest.EqualIn(t, "the session counts", "2", c.text("count", ""))
	commontest.EqualIn(t, "a new session counts", "1", m.session("one").text("count", ""))
	copies, err := filepath.Glob(filepath.Join(m.data, "accepted-*.json"))
	if err != nil || len(copies) != 1 {
		t.Fatal(copies, err)
	}
	if info, err := os.Stat(copies[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
	m.interrupt()
	if _, err := os.Stat(copies[0]); !errors.Is(err, os.ErrNotExist) {
		t.Error("the copy, which holds secrets, is still there:", err)
	}
}

// The file has the form of VS Code's, with comments, values that VS Code asks for, a file
// of variables and a remote server. One program of the project has a relative path. run says
// what to type, and what was typed hosts the servers of the file.
func TestE2EFileOfVSCodeIsImportedAsRunSays(t *testing.T) {
	t.Parallel()
	m := newMachine(t, nil)
	project := t.TempDir()
	link(t, stdio(t), filepath.Join(project, "bin", "own"))
	write(t, filepath.Join(project, "more.env"), "MORE='in the file'\n")
	theirs := filepath.Join(project, ".vscode", "mcp.json")
	write(t, theirs, `{
  // Values are in .env.
  "inputs": [{"type": "promptString", "id": "server-name", "description": "Name of the server"}],
  "servers": {
    "own": {"type": "stdio", "command": "bin/own", "args": ["-name", "${input:server-name}"], "envFile": "${workspaceFolder}/more.env"},
    "remote": {"type": "http", "url": "example.com/mcp"},
  },
}`)
	refused := m.command("run", "--listen", "127.0.0.1:0", "--servers", theirs)
	out, err := refused.CombinedOutput()
	typed := regexp.MustCompile(`dormouse import (\S+)`).FindSubmatch(out)
	if err == nil || refused.ProcessState.ExitCode() != 1 || typed == nil {
		t.Fatalf("%v, %s", err, out)
	}
	if said := m.does("import", string(typed[1])); !strings.Contains(said, "url must be a URL") || !strings.Contains(said, "put SERVER_NAME into .env") {
		t.Error(said)
	}
	write(t, filepath.Join(filepath.Dir(m.servers), ".env"), "SERVER_NAME=asked # for\n")
	write(t, filepath.Join(project, "named"), "SERVER_NAME=named\n")
	m.start("--env-file", filepath.Join(project, "named"))
	commontest.EqualIn(t, "the server is called", "named", m.session("own").whoami().Name)
}

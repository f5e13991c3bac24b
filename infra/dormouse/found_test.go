package dormouse

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/backend/native/nativetest"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// A command finds the only machine that is up, from every folder, or lists them.
func TestAMachineIsFoundFromEverywhere(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	t.Setenv(dataEnv, "")
	t.Chdir(t.TempDir())
	run := func(line string) (string, int) {
		return printedBy(strings.Fields(line), terminal{program: Program{Native: nativetest.Servers()}, now: noon})
	}
	if said, code := run("ps"); code != exitNotUp || !strings.Contains(said, "dormouse run is not up with .dormouse") {
		t.Errorf("%d %s", code, said)
	}
	up := func() string {
		s := newShell(t)
		s.file("servers.json", `{"mcpServers": {"counter": {"x-dormouse": {"native": "counter"}}}}`)
		t.Cleanup(s.up())
		t.Cleanup(upNote{Data: s.data, URL: "http://127.0.0.1:1"}.leave())
		return s.data
	}
	one := up()
	commontest.OK(t, os.WriteFile("servers.json", nil, 0o600)) // of a machine that is not up, so the one that answers is named
	for line, want := range map[string]string{"list": "counter", "ps": "--data " + one, "connect cursor": "/counter/mcp", "grants list": "GRANT"} {
		if said, code := run(line); code != exitDone || !strings.Contains(said, want) || exists(defaultData) {
			t.Errorf("%s: %d %s", line, code, said)
		}
	}
	if said, code := run("backup mine.zip --data typo/.dormouse"); code == exitDone {
		t.Errorf("a mistyped folder: %s", said)
	}
	commontest.OK(t, os.Remove("servers.json"))
	two := up()
	if said, code := run("list"); code != exitNotUp || !strings.Contains(said, "--data "+one) || !strings.Contains(said, "--data "+two) {
		t.Errorf("two: %d %s", code, said)
	}
	commontest.OK(t, os.Mkdir(defaultData, 0o700))
	if said, code := run("ps"); code != exitNotUp || !strings.Contains(said, "is not up with .dormouse") {
		t.Errorf("in a folder of its own: %d %s", code, said)
	}
}

// list and tools need no machine.
func TestListNeedsNoMachine(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	d := newDesk(t, `-- servers.json --
{"mcpServers": {"one": {"command": "npx", "args": ["x"]}, "off": {"command": "npx", "disabled": true}, "unset": {"command": "npx", "args": ["${NOBODY_SETS_THIS}"]},
  "port": {"command": "docker", "args": ["run", "-p", "1:1", "img"]}}}
`)
	engine := t.TempDir()
	commontest.OK(t, os.WriteFile(filepath.Join(engine, "docker"), nil, 0o755))
	t.Setenv("PATH", engine)
	said, code := d.run("list")
	for _, want := range []string{"one    not running  ", "off    off  ", "unset  not served  ", "Only a container engine can run port (docker run -p)", "servers.json is not hosted now: dormouse run"} {
		if code != exitDone || !strings.Contains(said, want) {
			t.Errorf("%d %s, want %s", code, said, want)
		}
	}
}

package serversfile_test

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestFilesAreKeptWhereThereIsAWorkspace(t *testing.T) {
	for _, c := range []struct {
		keys      string
		workspace bool
		kept      serversfile.Snapshot
	}{
		{`"x-dormouse": {"box": {}}`, false, "off"},
		{`"x-dormouse": {"box": {"snapshot": "session"}}`, true, "session"},
		{`"x-dormouse": {"box": {"host_path": "/srv/x"}}`, true, "session"},
		{`"x-dormouse": {"box": {"host_path": "/srv/x", "snapshot": "off"}}`, true, "off"},
		{`"x-dormouse": {"box": {"host_path": "/srv/x", "host_path_mode": "rw"}}`, true, "off"},
		{`"x-dormouse": {"box": {"profile": "default"}}`, true, "session"},
		{`"env": {"FILE": "${workspaceFolder}/memory.json"}`, true, "session"},
		{`"args": ["--db", "$workspaceFolder/a.db", "workspaceFolder"]`, false, "off"},
	} {
		read, warnings, err := serversfile.Parse([]byte(server(`"command": "a", `+c.keys)), "f", nil)
		if err != nil || len(warnings) > 0 {
			t.Error(c.keys, err, warnings)
			continue
		}
		s, _ := read.Server("x")
		if s.Workspace() != c.workspace || s.Kept() != c.kept {
			t.Errorf("%s: workspace %v, kept %s", c.keys, s.Workspace(), s.Kept())
		}
		again, err := serversfile.UnmarshalServer(s.Marshal())
		if err != nil || again.Kept() != c.kept {
			t.Errorf("%s: to the box it is kept %s (%v)", c.keys, again.Kept(), err)
		}
	}
}

func TestWhoSharesAProcessSharesWhatIsKept(t *testing.T) {
	for keys, want := range map[string]serversfile.Snapshot{
		`{"snapshot": "principal"}`:                                     serversfile.SnapshotPrincipal,
		`{"host_path": "/srv/x", "scope": "principal"}`:                 serversfile.SnapshotPrincipal,
		`{"host_path": "/srv/x", "scope": "shared"}`:                    serversfile.SnapshotShared,
		`{"host_path": "/srv/x", "snapshot": "off", "scope": "shared"}`: serversfile.SnapshotOff,
		`{"scope": "shared"}`:                                           serversfile.SnapshotOff,
	} {
		got, warnings := boxed(t, keys)
		if len(warnings) > 0 || got.Kept() != want {
			t.Errorf("%s: kept %s (%v)", keys, got.Kept(), warnings)
		}
	}
}

func TestWorkspaceVariableIsLeftToTheBox(t *testing.T) {
	set := func(name string) (string, bool) { return "set", name == "workspaceFolder" || name == "OTHER" }
	c, warnings, err := serversfile.Parse([]byte(server(`"command": "a", "args": ["${OTHER}${workspaceFolder}${OTHER}", "${workspaceFolder:-x}"]`)), "f", set)
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	s, _ := c.Server("x")
	commontest.Same(t, []string{"set${workspaceFolder}set", "set"}, s.Args)
}

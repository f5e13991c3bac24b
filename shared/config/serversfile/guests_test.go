package serversfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// hosted writes a servers file into a folder of its own.
func hosted(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "servers.json")
	commontest.OK(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestServersWithoutAProfileAreGuestsUnlessTheFileSaysOtherwise(t *testing.T) {
	servers := `{
		"plain": {"command": "npx", "args": ["x"]},
		"limits": {"command": "npx", "args": ["x"], "x-dormouse": {"box": {"memory_mb": 64, "network": "off", "read_only_rootfs": false}}},
		"profile": {"command": "npx", "args": ["x"], "x-dormouse": {"box": {"profile": "network_extended"}}},
		"free": {"command": "npx", "args": ["x"], "x-dormouse": {"box": {"profile": "none"}}},
		"container": {"command": "docker", "args": ["run", "x"]},
		"native": {"x-dormouse": {"native": "counter"}},
		"remote": {"url": "https://mcp.example.com/mcp"}}`
	guests := func(t *testing.T, c *serversfile.File) string {
		t.Helper()
		var names []string
		for _, name := range c.Names() {
			s, _ := c.Server(name)
			if s.Box.Guest {
				names = append(names, name)
			}
			if s.Box.Guest && (!s.Box.ReadOnlyRootFS || !s.Workspace() || s.Cwd != "") {
				t.Errorf("%s: a guest with %+v, which works in %q", name, s.Box, s.Cwd)
			}
			if back, err := serversfile.UnmarshalServer(s.Marshal()); s.Native == "" && (err != nil || back.Box.Guest != s.Box.Guest) {
				t.Errorf("%s: the box gets %+v, %v", name, back.Box, err)
			}
		}
		return strings.Join(names, " ")
	}
	file := hosted(t, `{"mcpServers":`+servers+`}`)
	c, _, err := serversfile.LoadGuests(file, nil)
	commontest.OK(t, err)
	commontest.EqualIn(t, "guests", "plain limits", guests(t, c))
	if s, _ := c.Server("limits"); !s.Box.Offline || s.Box.MemoryMB != 64 {
		t.Errorf("a guest has lost its own settings: %+v", s.Box)
	}
	if c, _, err = serversfile.LoadHere(file, nil); err != nil || guests(t, c) != "" {
		t.Errorf("guests where only the user can call: %v", err)
	}
	c, _, err = serversfile.LoadGuests(hosted(t, `{"mcpServers":`+servers+`, "x-dormouse": {"profile": "none"}}`), nil)
	if err != nil || guests(t, c) != "" {
		t.Errorf("guests although the file wants none: %v", err)
	}
	_, _, err = serversfile.LoadGuests(hosted(t, `{"mcpServers":`+servers+`, "x-dormouse": {"profile": "default"}}`), nil)
	if err == nil || !strings.Contains(err.Error(), `x-dormouse: profile must be "none": each server names its own under x-dormouse.box`) {
		t.Errorf("a profile for the whole file: %v", err)
	}
}

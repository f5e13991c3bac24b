package local

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// A default must not stop a server where the kernel has no sandbox, so there it is a warning.
func TestServersAreGuestsWhereOthersCallAndTheSystemCanConfineThem(t *testing.T) {
	file := filepath.Join(t.TempDir(), "servers.json")
	text := `{"mcpServers":{"a":{"command":"npx","args":["x"]},"off":{"command":"npx","args":["x"],"disabled":true},
		"b":{"command":"npx","args":["x"],"x-dormouse":{"box":{"profile":"none"}}}}}`
	commontest.OK(t, os.WriteFile(file, []byte(text), 0o600))
	all := sandbox.Support{Limits: true, Landlock: 7, Seccomp: true}
	for name, test := range map[string]struct {
		others bool
		on     sandbox.Support
		want   []string
		warns  string
	}{
		"only the user calls":     {false, all, nil, ""},
		"no sandbox, no matter":   {false, sandbox.Support{}, nil, ""},
		"others call":             {true, all, []string{"a"}, ""},
		"others, and no Landlock": {true, sandbox.Support{Limits: true, Seccomp: true}, nil, "a have the rights of this user (the kernel has no landlock"},
		"others, and no seccomp":  {true, sandbox.Support{Limits: true, Landlock: 7}, nil, "a have the rights of this user (the kernel has no seccomp"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &serversFile{Config: Config{Servers: file}, others: test.others, on: test.on, warned: map[string]bool{}}
			servers, err := f.load()
			commontest.OK(t, err)
			commontest.SameIn(t, name, test.want, guests(servers))
			if got := strings.Join(f.news(), "\n"); !strings.Contains(got, test.warns) || test.warns == "" && got != "" {
				t.Errorf("%s: it warns %q", name, got)
			}
		})
	}
}

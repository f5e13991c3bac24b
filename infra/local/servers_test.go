package local

import (
	"context"
	"os"
	"path/filepath"
	"slices"
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
			if got := guests(servers); !slices.Equal(got, test.want) {
				t.Errorf("%s: guests are %q", name, got)
			}
			if got := strings.Join(f.news(), "\n"); !strings.Contains(got, test.warns) || test.warns == "" && got != "" {
				t.Errorf("%s: it warns %q", name, got)
			}
		})
	}
}

func TestMachinesThatOthersCallHaveGuests(t *testing.T) {
	for name, test := range map[string]struct {
		cfg  Config
		want bool
	}{
		"loopback":               {Config{Listen: "127.0.0.1:0"}, false},
		"open behind a proxy":    {Config{Listen: "127.0.0.1:0", Access: AccessOpen, PublicURL: "https://mcp.example.com"}, false},
		"keys":                   {Config{Listen: "127.0.0.1:0", Access: AccessKeys}, true},
		"sign-in":                {Config{Listen: "127.0.0.1:0", Access: AccessOAuth}, true},
		"tokens":                 {Config{Listen: "127.0.0.1:0", Access: AccessIDP}, true},
		"all addresses":          {Config{Listen: "0.0.0.0:0"}, true},
		"all addresses and open": {Config{Listen: "0.0.0.0:0", Access: AccessOpen}, true},
		"programs, as on AWS":    {Config{Listen: "0.0.0.0:0", Functions: func(context.Context, *Site) (Functions, error) { return nil, nil }}, false},
		"asked for":              {Config{Listen: "127.0.0.1:0", Guests: true}, true},
		"a public URL":           {Config{Listen: "127.0.0.1:0", PublicURL: "https://mcp.example.com"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			commontest.EqualIn(t, name, test.want, test.cfg.HasGuests())
		})
	}
}

package wiring

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/catalog"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

func TestAServerNeedsAnInstallUntilOneOfItsDefinitionIsKept(t *testing.T) {
	servers, _, err := catalog.Parse([]byte(`{"mcpServers":{"npm":{"command":"npx","args":["-y","a"]},"py":{"command":"/usr/bin/uvx","args":["b"]},"own":{"command":"node","args":["c.js"]}}}`), "servers.json", func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	f := &Function{Settings: Settings{Servers: servers}}
	for name, installs := range map[string]bool{"npm": true, "py": true, "own": false} {
		s, _ := servers.Server(name)
		for installed, want := range map[string]bool{"": installs, "an earlier definition": installs, s.Definition(): false} {
			if got := f.needs(session.Box{Server: name, Installed: installed}).Installs; got != want {
				t.Errorf("%s needs an install: %v, want %v; kept is %q", name, got, want, installed)
			}
		}
	}
}

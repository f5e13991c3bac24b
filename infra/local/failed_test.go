package local

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestAFailedStartIsRememberedUntilOneSucceeds(t *testing.T) {
	f := &failures{why: map[string]string{}}
	fails := func(server, phase, why string) {
		f.Record(journal.Event{Kind: journal.ServerFailed, Name: server, Phase: phase, Reason: why})
	}
	fails("one", "process_start", "older")
	fails("one", "process_start", "no key")
	fails("two", "mcp_init", "no answer")
	fails("three", "dep_install", "no such package")
	fails("four", "runtime", "it crashed in a call")
	f.Record(journal.Event{Kind: journal.ServerReady, Name: "two"})
	f.Record(journal.Event{Kind: journal.ServersChanged, FileChange: journal.FileChange{Changed: []string{"three"}}})
	commontest.Same(t, map[string]string{"one": "no key"}, f.now())
}

// What the keeper cannot follow goes to the engine of this machine, and is named.
func TestWordsThatOnlyAnEngineFollowsAreNamed(t *testing.T) {
	file := `{"mcpServers": {
		"kept": {"command": "docker", "args": ["run", "-i", "--rm", "img"]},
		"port": {"command": "docker", "args": ["run", "-i", "-p", "1:1", "img"]},
		"volume": {"command": "docker", "args": ["run", "-i", "-v", "data:/y", "img"]},
		"sealed": {"command": "docker", "args": ["run", "--privileged", "img"], "x-dormouse": {"box": {"sealed": true}}},
		"off": {"command": "docker", "args": ["run", "--privileged", "img"], "disabled": true},
		"plain": {"command": "docker", "args": ["mcp"]}}}`
	servers, _, err := serversfile.Parse([]byte(file), "servers.json", nil)
	engine := t.TempDir()
	commontest.OK(t, err)
	commontest.OK(t, os.WriteFile(filepath.Join(engine, "docker"), nil, 0o755))
	for path, want := range map[string]string{engine: "Only a container engine can run port (docker run -p), volume (docker run -v data:/y) (docs/sandbox.md).", t.TempDir(): ""} {
		commontest.Same(t, want, LeftToEngines(servers, path, ""))
	}
}

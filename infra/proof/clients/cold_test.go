//go:build clients

package clients

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
)

// TestColdStartDoesNotShowOnDiscover runs each client that probes against a server that
// was never started. Its start takes longer than clients wait before they give up on the
// modern era (Python 10 s). No client must fall back to initialize, and each server must
// be started once.
func TestColdStartDoesNotShowOnDiscover(t *testing.T) {
	eras := prepareEras(t)
	starts := t.TempDir()
	clients, servers := map[string]client{}, map[string]any{}
	for name, c := range map[string]string{"ts-auto": "ts auto", "py-auto": "py auto", "go-default": "go"} {
		clients[name] = modernClients()[c]
		servers[name] = map[string]any{
			"command": "/bin/sh",
			"args":    []string{"-c", `echo started >> "$1"; sleep 12; exec "$2" modern`, "sh", filepath.Join(starts, name), eras},
		}
	}
	hosted := programtest.Host(t, servers)
	runs := map[string]*clientRun{}
	for name, c := range clients {
		runs[name] = newRun(t, c.name, streamable, append(c.prepare(t, streamable), "--cold", "--url", hosted[name].URL, "--transport", streamable))
		runs[name].checks = modernChecks()
	}
	for _, r := range runs {
		r.start(t)
	}
	for name, r := range runs {
		t.Run(name, func(t *testing.T) {
			r.report(t)
			started, err := os.ReadFile(filepath.Join(starts, name))
			if n := bytes.Count(started, []byte("started")); err != nil || n != 1 {
				t.Errorf("%d processes were started (%v)", n, err)
			}
		})
	}
}

//go:build clients

package clients

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// A call that a limit refuses leaves the client's session alive, and the model
// learns when to call again. Go-sdk's client over HTTP is in the tests of
// functions/wiring/endpoints.
func TestRealClientsGoOnAfterARefusal(t *testing.T) {
	// Each client has a machine of its own, and so a limit of its own.
	hosted := func(t *testing.T) string {
		servers := map[string]any{"counter": map[string]any{"x-dormouse": map[string]any{"native": "counter"}}}
		return examples(t).Host(t, servers, map[string]any{"limits": map[string]any{"principal": "60/m burst 3"}})["counter"].URL
	}
	program := func(of string) func(*testing.T) []string {
		return func(t *testing.T) []string {
			if requirements, python := strings.CutPrefix(of, "py "); python {
				return preparePython(t, requirements, "limits.py")
			}
			return prepareTypeScript(t, of, "limits.mjs")
		}
	}
	for name, prepare := range map[string]func(*testing.T) []string{
		"py-1.30.0": program("py requirements-1.30.0.txt"), "py-2.3.0": program("py requirements-2.3.0.txt"), "ts-1.32.2": program("ts"), "ts-2.4.0": program("ts2"),
	} {
		t.Run(name, func(t *testing.T) {
			command := append(prepare(t), "--url", hosted(t))
			var got struct {
				Done  int
				Text  string
				Again bool
			}
			out := programtest.Run(t, ".", "the client did not go on", runLimit, command[0], command[1:]...)
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if got.Done < 1 || !got.Again || !strings.Contains(got.Text, "try again in") {
				t.Errorf("%s", out)
			}
		})
	}
	t.Run("mcp-remote-0.15.1", func(t *testing.T) {
		remote := filepath.Join(nodeModules(t, "mcp-remote"), "node_modules", "mcp-remote", "dist", "proxy.js")
		command := exec.CommandContext(t.Context(), programtest.Tool(t, "node", programtest.NodeHelp), remote, hosted(t))
		command.Env = append(command.Environ(), "MCP_REMOTE_CONFIG_DIR="+t.TempDir())
		client := mcp.NewClient(&mcp.Implementation{Name: "limits", Version: "1"}, nil)
		s, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: command}, nil)
		commontest.OK(t, err)
		defer func() { _ = s.Close() }()
		call := func() bool {
			r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "add", Arguments: map[string]any{}})
			commontest.OK(t, err)
			return !r.IsError
		}
		for done := 0; call(); done++ {
			if done > 1000 {
				t.Fatal("no call is refused")
			}
		}
		for begun := time.Now(); !call(); {
			if time.Since(begun) > time.Minute {
				t.Fatal("calls are refused for ever")
			}
			time.Sleep(time.Second)
		}
	})
}

package local

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// A save starts an idle server anew. Its session hears of it, and finds the new tool. A start
// that fails says where.
func TestASaveStartsTheServerAnew(t *testing.T) {
	events := &logged{lines: make(chan string, 10_000)}
	script := filepath.Join(t.TempDir(), "main.py")
	save := func(text string) {
		t.Helper()
		commontest.OK(t, os.WriteFile(script, []byte(text), 0o600))
	}
	save("first")
	m := started(t, func(c *Config) {
		file, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"one": map[string]any{"command": os.Args[0], "args": []string{script}, "env": map[string]string{roleEnv: "server"}}}})
		if err == nil {
			err = os.WriteFile(c.Servers, file, 0o600)
		}
		commontest.OK(t, err)
		c.Environ = append(os.Environ(), "DORMOUSE_CACHE="+filepath.Join(t.TempDir(), "cache"))
		c.Watch, c.JSON = func(string) bool { return true }, events
	})
	await := func(kind string) string {
		for {
			if line := <-events.lines; strings.Contains(line, `"kind":"`+kind+`"`) {
				return line
			}
		}
	}
	c := open(t, m.public.address(0)+"/one/mcp")
	heard := c.listens()
	save("second")
	await("server.saved")
	commontest.EqualIn(t, "the session hears", wire.NotifyToolsChanged, <-heard)
	commontest.Contains(t, "the list", `"second"`, string(c.answer(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`).Result))
	save("")
	await("server.saved")
	commontest.Contains(t, "the start failed with", `"lines":["main.py:1"]`, await("server.failed"))
	commontest.OK(t, os.WriteFile(filepath.Join(filepath.Dir(script), "requirements.txt"), []byte("mcp"), 0o600))
	await("server.saved")
}

// listens opens the standalone stream, and returns the methods of what comes.
func (c *client) listens() <-chan string {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, c.url, nil)
	commontest.OK(c.t, err)
	r.Header = http.Header{"Accept": {"text/event-stream"}, "Mcp-Session-Id": {c.session}, "Mcp-Protocol-Version": {"2025-11-25"}}
	res, err := http.DefaultClient.Do(r) //nolint:bodyclose // the goroutine closes it
	if err != nil || res.StatusCode != http.StatusOK {
		c.t.Fatal(err, res)
	}
	methods := make(chan string, 10)
	go func() {
		defer func() { _ = res.Body.Close() }()
		for lines := bufio.NewScanner(res.Body); lines.Scan(); {
			if m, err := wire.Parse([]byte(strings.TrimPrefix(lines.Text(), "data: "))); err == nil {
				methods <- m.Method
			}
		}
	}()
	return methods
}

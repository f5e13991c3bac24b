package local

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
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
	if list := c.answer(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`); !strings.Contains(string(list.Result), `"second"`) {
		t.Errorf("the list is %s", list.Result)
	}
	save("")
	await("server.saved")
	commontest.Contains(t, "the start failed with", `"lines":["main.py:1"]`, await("server.failed"))
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

func TestAnErrorNamesThePlacesInTheSources(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{
		"main.py": "import json\nimport helper\n", "helper.py": "nothere\n", "src/a.ts": "one\ntwo(\n", "node_modules/b.js": "x\n", "cmd/main.go": "package main\n",
	} {
		commontest.OK(t, os.MkdirAll(filepath.Join(folder, filepath.Dir(name)), 0o700))
		commontest.OK(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	for name, c := range map[string]struct {
		words, hostPath string
		want            []string
	}{
		"Python": {
			"Traceback (most recent call last):\n  File \"DIR/main.py\", line 2, in <module>\n    import helper\n  File \"/usr/lib/python3/x.py\", line 9\n  File \"DIR/helper.py\", line 1, in <module>\nNameError: name 'nothere'",
			"",
			[]string{"main.py:2: import helper", "helper.py:1: nothere"},
		},
		"Node": {
			"file://DIR/src/a.ts:2\ntwo(\n\nSyntaxError: missing )\n    at f (file://DIR/src/a.ts:2:5)\n    at g (DIR/node_modules/b.js:1:1)\n    at node:internal/x:3:1",
			"",
			[]string{"src/a.ts:2: two("},
		},
		"tsc":                 {"src/a.ts(2,5): error TS1005: ')' expected.", "", []string{"src/a.ts:2: two("}},
		"Go":                  {"# example.com/x\ncmd/main.go:1:3: undefined: y\n./cmd/main.go:7:1: gone", "", []string{"cmd/main.go:1: package main", "cmd/main.go:7"}},
		"a copy":              {"  File \"/x/.mcp/1/workspace/helper.py\", line 1, in f", "DIR", []string{"helper.py:1: nothere"}},
		"outside":             {"  File \"/etc/passwd\", line 1\n/etc/hosts:1: x", "", nil},
		"no file and no line": {"at 12:30: failed: http://127.0.0.1:8787/", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := serversfile.Server{Command: "x", Cwd: folder}
			if c.hostPath != "" {
				s.Box.HostPath = folder
			}
			commontest.Same(t, c.want, slices.Clip(places(s, strings.ReplaceAll(c.words, "DIR", folder))))
		})
	}
}

package serversfile_test

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func FuzzJSON(f *testing.F) {
	for _, keys := range []string{
		`"command": "a"`, digestOf, `"command": "npx -y a"`, `"url": "u"`, `"command": "${A:-b}", "cwd": "${A}"`,
		digestOf + `, "x-dormouse": {"idle_seconds": 0.5, "tool_timeout_sec": 0, "record": "off", "enabled": 1}`,
		digestOf + `, "x-dormouse": {"box": ` + everyField + `}`,
		digestOf + `, "x-dormouse": {"box": {"profile": "offline_readonly", "cpus": 1e99, "prewarm": -1, "secrets": [1]}}`,
		`"command": "<&>\ud83d\ude00\"\\", "args": ["", "\t\r\n\u2028"], "env": {"É": "\u007f"}`,
		`"command": "a", "é": [{"a": [null, true, 1e9]}],`, "\"command\": \"\\ud800\"\n//",
	} {
		f.Add([]byte(server(keys)))
	}
	f.Add([]byte("\ufeff{} "))
	f.Add([]byte("{ // a\n\"mcpServers\":{\"b\":{\"command\":\"a//\",\"args\":[\"c\\\"/*\",],},/**/}}//"))
	f.Add([]byte(`{"mcpServers":{"b":{"command":"a"},"b":{}},"servers":0}`))
	for _, file := range clientFiles(f) {
		data, err := os.ReadFile(file)
		commontest.OK(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) { checkFile(t, data, "servers.json") })
}

// checkFile reads a file and checks the promises that hold for every file.
func checkFile(t *testing.T, data []byte, file string) {
	t.Helper()
	c, warnings, err := serversfile.Parse(data, file, variables(map[string]string{"A": "1"}))
	for _, w := range warnings {
		checkPosition(t, data, w.Position)
	}
	if err != nil {
		var first *serversfile.Error
		if !errors.As(err, &first) {
			t.Fatalf("%v names no place", err)
		}
		checkPosition(t, data, first.Position)
		return
	}
	for _, r := range c.Rejected() {
		if _, ok := c.Server(r.Name); ok || c.Reason(r.Name) == "" {
			t.Fatalf("server %q is rejected and served", r.Name)
		}
		checkPosition(t, data, r.Errors[0].Position)
	}
	for _, name := range c.Names() {
		s, ok := c.Server(name)
		if !ok || s.Name != name {
			t.Fatalf("server %q is %v, %v", name, s, ok)
		}
		if s.Disabled || s.Native != "" {
			continue
		}
		back, err := serversfile.UnmarshalServer(s.Marshal())
		commontest.OK(t, err)
		if diff := cmp.Diff(fields(s), fields(back)); diff != "" {
			t.Fatal(diff)
		}
	}
}

func checkPosition(t *testing.T, data []byte, p serversfile.Position) {
	t.Helper()
	if lines := 1 + bytes.Count(data, []byte("\n")); p.Line < 1 || p.Line > lines || p.Column < 1 || p.Column > len(data)+1 {
		t.Fatalf("%v is not in the file", p)
	}
}

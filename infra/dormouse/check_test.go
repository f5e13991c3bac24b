package dormouse

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/backend/native/nativetest"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// What check says of a file is what run does with it, whoever may call: it starts or not,
// and serves the same servers.
func TestCheckSaysWhatRunDoes(t *testing.T) {
	const good = `"good": {"command": "true"}`
	files := map[string]string{
		"right":               `{"mcpServers": {` + good + `, "off": {"command": "true", "disabled": true}}}`,
		"none":                `{"mcpServers": {}}`,
		"no JSON":             `{"mcpServers": {`,
		"missing variable":    `{"mcpServers": {` + good + `, "a": {"command": "true", "env": {"K": "${DORMOUSE_TEST_NOT_SET}"}}}}`,
		"unknown key of ours": `{"mcpServers": {` + good + `, "a": {"command": "true", "x-dormouse": {"confirm": []}}}}`,
		"group of nobody":     `{"mcpServers": {` + good + `}, "x-dormouse": {"groups": {"dev": {"servers": ["nobody"]}}}}`,
		"access, unknown key": `{"mcpServers": {` + good + `}, "x-dormouse": {"access": {"issuer": "https://login.example.com", "allows": {}}}}`,
		"access, role":        `{"mcpServers": {` + good + `}, "x-dormouse": {"access": {"issuer": "https://login.example.com", "roles": {"boss": {"everyone": true}}}}}`,
		"access, rule":        `{"mcpServers": {` + good + `, "a": {"command": "true"}}, "x-dormouse": {"access": {"issuer": "https://login.example.com", "client_id": "c", "allow": {"a": {"someone": true}, "*": {"everyone": true}}}}}`,
		"native, in a group":  `{"mcpServers": {` + good + `, "a": {"x-dormouse": {"native": "countre"}}}, "x-dormouse": {"groups": {"dev": {"servers": ["good", "a"]}}}}`,
		"access, secret":      `{"mcpServers": {` + good + `}, "x-dormouse": {"access": {"issuer": "https://login.example.com", "client_id": "c", "client_secret": "${DORMOUSE_TEST_NOT_SET}"}}}`,
		"connect":             `{"mcpServers": {` + good + `}, "x-dormouse": {"connect": {"x": {"authorize": "https://example.com/a"}}}}`,
		"reserved name":       `{"mcpServers": {` + good + `, "ping": {"command": "true"}}}`,
	}
	for name, text := range files {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "servers.json")
			commontest.OK(t, os.WriteFile(file, []byte(text), 0o600))
			for _, flags := range []served{{}, {Access: local.AccessKeys}, {Access: local.AccessIDP}, {Access: local.AccessOAuth, PublicURL: "https://mcp.example.com"}} {
				flags.Listen = "127.0.0.1:0"
				if flags.PublicURL == "" && flags.Access != "" {
					flags.PublicURL = "http://127.0.0.1:9"
				}
				cfg := flags.config(Program{Native: nativetest.Servers()}, file)
				c, _, mistakes := readServers(cfg)
				var want []string
				if c != nil {
					want = append(want, enabled(c)...)
				}
				served, err := servedBy(t, cfg)
				if (err == nil) != (c != nil) {
					t.Errorf("%+v: check would have it started: %t (%v); run: %v", flags, c != nil, mistakes, err)
				}
				if diff := cmp.Diff(want, served); err == nil && diff != "" {
					t.Errorf("%+v: %s", flags, diff)
				}
			}
		})
	}
}

// servedBy runs a machine until it is ready, and returns the servers that it serves.
func servedBy(t *testing.T, cfg local.Config) (names []string, err error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var ready bytes.Buffer
	cfg.Data, cfg.Runner, cfg.JSON, cfg.Log = t.TempDir(), []string{"/does/not/exist"}, &ready, &bytes.Buffer{}
	cfg.Ready = func(string) { stop() }
	err = local.Run(ctx, cfg)
	for line := range strings.Lines(ready.String()) {
		var e struct{ Kind, Name string }
		commontest.OK(t, json.Unmarshal([]byte(line), &e))
		if e.Kind == "ready" {
			names = append(names, e.Name)
		}
	}
	return names, err
}

package serversedit_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/internal/serversedit"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestWrongFilesOfClientsSayWhereAndQuoteNothing(t *testing.T) {
	for text, want := range map[string]string{
		`{"servers": {"x": hunter2}}`:                                "f:1:19: not JSON: ",
		"[mcp_servers.x]\nA = hunter2":                               "f:2:5: not TOML: ",
		"[mcp_servers.x]\nA = 1e9999999hunter2":                      "f:2:",
		"[mcp_servers.x]\n[mcp_servers.x] # hunter2":                 "f:2:2: not TOML: table x already exists",
		`{"mcpServers": {"hunter1": {}, "hunter1": {}}}`:             "f:1:32: duplicate key",
		`{"mcpServers": ["hunter2"]}`:                                "f:1:16: mcpServers must be an object",
		`{"command": "hunter2"}`:                                     "f has no servers in a form that import knows",
		`{"x": {"command": "hunter2"}, "y": "hunter2"}`:              "f has no servers in a form that import knows",
		`{"servers": {"x": {"command": "a", "args": "hunter2"}}}`:    "",
		"\n\"x\": {\"command\": \"a\", \"args\": \"hunter2\"}, // y": "",
	} {
		src, err := serversedit.Read([]byte(text), "f", false)
		if want == "" {
			if err != nil || src.Servers[0].Why != "args must be an array, not a string" {
				t.Errorf("%s: %v %v", text, src, err)
			}
			continue
		}
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// What a client's file says in its own words is in the entry in ours.
func TestWordsOfClientsAreTakenOver(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"an input of an environment": {
			`{"inputs": [{"id": "a-b", "default": "x\"y", "password": true}, {"id": "c", "default": "{}"}], "servers": {"x": {"command": "a", "args": ["${input:a-b}", "${input:c}"], "env": {"K": "v${input:a-b}", "L": "${input:c}"}}}}`,
			`{"command":"a","args":["${A_B:-x\"y}","${C}"],"env":{"K":"v${A_B:-x\"y}","L":"${C}"},"x-dormouse":{"box":{"secrets":["K"]}}}`,
		},
		"a project's file":           {`{"servers": {"x": {"command": "${workspaceFolder}/a", "cwd": "sub", "envFile": "${workspaceFolder}/e.env"}}}`, `{"command":"DIR/a","cwd":"DIR/sub","envFile":"DIR/e.env"}`},
		"a user's file of VS Code":   {`{"servers": {"x": {"command": "a", "args": ["${workspaceFolder}"], "cwd": "sub"}}}`, `{"command":"a","args":["${workspaceFolder}"],"cwd":"DIR/sub"}`},
		"a user's file of Cursor":    {`{"mcpServers": {"x": {"command": "a", "args": ["${workspaceFolder}"], "envFile": "${workspaceFolder}/e.env"}}}`, `{"command":"a","args":["${workspaceFolder}"],"envFile":"DIR/e.env"}`},
		"headers and a type":         {`{"servers": {"x": {"type": "sse", "url": "https://example.com", "headers": {"A": 3, "B": null}}}}`, `{"url":"https://example.com","type":"sse","headers":{"A":"3"}}`},
		"headers of Codex":           {"[mcp_servers.x]\nurl = 'https://example.com'\nbearer_token_env_var = 'T'\nhttp_headers = { A = 'b' }\nenv_http_headers = { C = 'D' }\ntool_timeout_sec = 1_0\nx-dormouse = { record = 'off' }", `{"url":"https://example.com","headers":{"Authorization":"Bearer ${T}","C":"${D}","A":"b"},"x-dormouse":{"record":"off","tool_timeout_sec":10}}`},
		"variables of Codex":         {"[mcp_servers.x]\ncommand = 'a'\nenv_vars = ['B']\nenv = { P = 3 }\nenabled = false", `{"command":"a","env":{"P":"3"},"env_vars":["B"],"enabled":false}`},
		"the shell of Windows":       {`{"mcpServers": {"x": {"command": "cmd", "args": ["/d", "/c", "npx", "-y", "a"]}}}`, `{"command":"npx","args":["-y","a"]}`},
		"mcp-remote":                 {`{"mcpServers": {"x": {"command": "npx", "args": ["-y", "mcp-remote@latest", "https://example.com/sse", "9696", "--transport", "sse-only", "--header", "Authorization: ${H}", "--allow-http", "--ignore-tool", "del*", "--host", "h"], "env": {"H": "Bearer ${T}"}, "disabled": true}}}`, `{"url":"https://example.com/sse","type":"sse","headers":{"Authorization":"Bearer ${T}"},"disabled":true,"x-dormouse":{"tools":{"deny":["del*"]}}}`},
		"mcp-remote to this machine": {`{"mcpServers": {"x": {"command": "cmd", "args": ["/c", "mcp-remote", "http://localhost:3000/mcp"]}}}`, `{"url":"http://localhost:3000/mcp","x-dormouse":{"remote":{"private":true}}}`},
		"a time of Codex, too long":  {"[mcp_servers.x]\ncommand = 'a'\ntool_timeout_sec = 1e9", ``},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			commontest.OK(t, os.WriteFile(filepath.Join(folder, "e.env"), nil, 0o600))
			path := filepath.Join(folder, "file.json")
			switch {
			case !strings.HasPrefix(test.text, "{"):
				path = filepath.Join(folder, "config.toml")
			case name == "a project's file":
				path = filepath.Join(folder, ".vscode", "mcp.json")
			case name == "a user's file of Cursor":
				t.Setenv("HOME", folder)
				path = filepath.Join(folder, ".cursor", "mcp.json")
			}
			src, err := serversedit.Read([]byte(test.text), path, false)
			commontest.OK(t, err)
			f := parse(t, "")
			items, err := serversedit.Import(src, f, serversedit.NewEnv(nil, nil), options())
			commontest.OK(t, err)
			if test.want == "" {
				commontest.EqualIn(t, fmt.Sprintf("%+v", items), serversedit.LeaveOut, items[0].Does)
				return
			}
			var got struct {
				Servers struct{ X json.RawMessage } `json:"mcpServers"`
			}
			if err := json.Unmarshal(f.Text(), &got); err != nil || items[0].Why != "" {
				t.Fatal(err, items)
			}
			compact, err := json.Marshal(got.Servers.X)
			commontest.OK(t, err)
			commontest.Same(t, test.want, strings.ReplaceAll(string(compact), folder, "DIR"))
		})
	}
}

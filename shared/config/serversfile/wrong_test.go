package serversfile_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestWrongFileSaysWhereAndWhy(t *testing.T) {
	for _, c := range []struct{ name, file, want string }{
		// The syntax.
		{"empty", "", `f:1:1: the file is empty: write {"mcpServers": {}}`},
		{"hash comment", "# hosts\n{}", `f:1:1: a comment begins with //: change or remove it`},
		{"comment without an end", "{\n /* \"mcpServers\": {}}", `f:2:2: the comment has no end: write */ behind it`},
		{"comma behind a name", `{"mcpServers": {"x":, }}`, `f:1:21: not JSON: invalid character ',' at start of value`},
		{"single quotes", `{'mcpServers': {}}`, `f:1:2: strings stand in double quotes: "…"`},
		{"curly quotes", `{“mcpServers”: {}}`, `f:1:2: strings stand in double quotes: "…"`},
		{"missing comma", `{"mcpServers": {} "b": 1}`, `f:1:19: not JSON: a comma is missing before this`},
		{"two documents", "{\"mcpServers\": {}}\n {}", `f:2:2: text after the end of the JSON document: remove it`},
		{"no braces", `"x": {"command": "a"}`, `f:1:4: text outside of an object: write {"mcpServers": {…}} around it`},
		{"UTF-16", "\xff\xfe{\x00}\x00", `f:1:1: not UTF-8: save the file as UTF-8`},

		// The top.
		{"mistyped servers", `{"mcpServer": {}}`, `f:1:2: no servers in the file: unknown key "mcpServer": did you mean "mcpServers"?`},
		{"duplicate server", "{\"mcpServers\": {\"x\": {\"command\": \"a\"},\n \"x\": {\"command\": \"a\"}}}", `f:2:2: duplicate key "x": it is already on line 1`},

		{"duplicate top key", "{\"mcpServers\": {},\n\"mcpServers\": {}}", `f:2:1: duplicate key "mcpServers": it is already on line 1`},

		// Names.
		{"reserved name", `{"mcpServers": {"ping": {"command": "a"}}}`, `f:1:17: server name "ping" is reserved: choose another`},

		// One server.
		{"missing command", server(`"args": ["a"]`), `f:2:1: server "x": missing command: give the program that starts it`},
		{"command of an empty variable", server(`"command": "${NONE:-}"`), `f:2:18: server "x": command is empty once its variables are put in`},
		{"args of lists", server(`"command": "npx", "args": ["-p", [80]]`), `f:2:40: server "x": args[1] must be a string, not an array`},
		{"env name", server(`"command": "npx", "env": {"A=B": ""}`), `f:2:33: server "x": env: "A=B" cannot be the name of a variable`},
		{"mistyped key", server(`"comand": "npx"`), `f:2:7: server "x": unknown key "comand": did you mean "command"?`},
		{"cmd", server(`"cmd": "npx"`), `f:2:7: server "x": unknown key "cmd": did you mean "command"?`},
		{"key of the box", server(`"command": "a", "x-dormouse": {"profile": "default"}`), place(38) + `unknown key "profile" under x-dormouse: move it under x-dormouse.box of the server`},
		{"key of a server", `{"mcpServers": {}, "x-dormouse": {"box": {}}}`, `f:1:35: the file: unknown key "box" under x-dormouse: move it under x-dormouse of the server`},
		{"key of the file", server(`"command": "a", "x-dormouse": {"limits": {}}`), place(38) + `unknown key "limits" under x-dormouse: move it under x-dormouse beside mcpServers`},
		{"unknown key of the file", `{"mcpServers": {}, "x-dormouse": {"approvals": {}}}`, `f:1:35: the file: unknown key "approvals" under x-dormouse: there are access, audit, connect, groups, limits, profile`},
		{"unknown key of a group", `{"mcpServers": {}, "x-dormouse": {"groups": {"dev": {"users": ["a"]}}}}`, `f:1:54: the file: unknown key "users" under x-dormouse.groups: dev: there are names, servers, tools`},
		{"unknown key of tools", server(`"command": "a", "x-dormouse": {"tools": {"denied": ["x"]}}`), `f:2:48: server "x": unknown key "denied" under x-dormouse.tools: did you mean deny?`},
		{"command line", server(`"command": "node --token=hunter2"`), place(18) + `command and arguments stand in one string: split it into "command": "node" and "args": ["…", "…"]`},
		{"NUL", server(`"command": "npx", "args": ["a\u0000b"]`), `f:2:34: server "x": args[0]: a NUL character or bytes that are not UTF-8 cannot be passed to a process`},

		// Servers that are not started.
		{"two URLs", server(`"url": "https://example.com/mcp", "serverUrl": "https://example.com/mcp"`), place(41) + `serverUrl is a second URL: leave one of them`},
		{"url and box", server(`"url": "https://example.com/mcp", "x-dormouse": {"box": {"network": "off"}}`), place(56) + `box is for a server in a box: leave it out beside the url`},
		{"url and cwd", server(`"url": "https://example.com/mcp", "args": [], "env": {}, "cwd": "a"`), place(64) + `cwd is for a server that is started: leave it out beside the url`},
		{"url and env_vars", server(`"url": "https://example.com/mcp", "env_vars": ["A"]`), place(41) + `env_vars is for a server that is started: leave it out beside the url`},
		{"name of a header", server(`"url": "https://example.com/mcp", "headers": {"A B": "c"}`), place(53) + `headers: "A B" cannot be the name of a header`},
		{"workspace as command", server(`"command": "${workspaceFolder}/a"`), place(18) + `command: ${workspaceFolder} can stand in args and env only`},
		{"workspace as cwd", server(`"command": "a", "cwd": "${workspaceFolder}"`), place(30) + `cwd: a process works in ${workspaceFolder} anyway: leave cwd out`},
		{"value of a header", server(`"url": "https://example.com/mcp", "headers": {"A": "c\nd"}`), place(58) + `header A: a line break cannot be in the value of a header`},
		{"secret of AWS in a header", server(`"url": "https://example.com/mcp", "headers": {"A": "Bearer ssm:/a/b"}`), place(58) + `header A: only env can name a secret of AWS: write the value, or ${principal:…}`},
		{"file in a header", server(`"url": "https://example.com/mcp", "headers": {"A": "${principal_file:b}"}`), place(58) + `header A: a remote server reads no file: write ${principal:…}`},
		{"remote without url", server(`"command": "a", "x-dormouse": {"remote": {"private": true}}`), place(38) + `remote is for a server with a url`},
		{"type sse", server(`"type": "sse"`), place(7) + `type "sse" needs a url`},
		{"type unknown", server(`"command": "a", "type": "carrier pigeon"`), place(31) + `unknown type "carrier pigeon": choose "stdio", "http" or "sse"`},

		// Our additions.
		{"idle a string", server(`"command": "a", "x-dormouse": {"idle_seconds": "5"}`), `f:2:54: server "x": idle_seconds must be a number, not a string`},
		{"idle zero", server(`"command": "a", "x-dormouse": {"idle_seconds": 0}`), `f:2:54: server "x": idle_seconds must be more than 0 and at most 86400 seconds`},
		{"tool below zero", server(`"command": "a", "x-dormouse": {"tool_timeout_sec": -1}`), `f:2:58: server "x": tool_timeout_sec must be 0, for no limit, and at most 86400 seconds`},
		{"tasks of no kind", server(`"command": "a", "x-dormouse": {"tasks": "on"}`), `f:2:47: server "x": tasks must be "auto", "always" or "off"`},
		{"native without a name", server(`"x-dormouse": {"native": ""}`), `f:2:32: server "x": native must be the name of a server that is part of the functions`},

		// Variables.
		{"variable in args", server(`"command": "a", "args": ["b", "${A_1}"]`), unset(37, "args[1]", "A_1")},
		{"variable in env", server(`"command": "a", "env": {"KEY": "x${K}"}`), unset(38, `env "KEY"`, "K")},
		{"home without a home", server(`"command": "a", "args": ["~/b"]`), place(32) + `args[0]: the home folder is not known, and a stack has none: write a path of the machine or the image that runs the server, or ${HOME:-default}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _, err := serversfile.Parse([]byte(c.file), "f", nil)
			if err != nil && got != nil {
				t.Error("a catalog came with the error")
			}
			if err = wrong(c.file, nil); err == nil {
				t.Fatal("no error")
			}
			commontest.Equal(t, c.want, err.Error())
		})
	}
}

// wrong returns all the mistakes of a file: of the file as a whole, or else of its
// servers.
func wrong(file string, env serversfile.Getenv) error {
	c, _, err := serversfile.Parse([]byte(file), "f", env)
	if err != nil {
		return err
	}
	var all []error
	for _, r := range c.Rejected() {
		if _, ok := c.Server(r.Name); ok {
			return fmt.Errorf("server %q is rejected and served", r.Name)
		}
		for _, e := range r.Errors {
			all = append(all, e)
		}
	}
	return errors.Join(all...)
}

// server returns a file whose server "x" begins on line 2.
func server(keys string) string { return "{\"mcpServers\": {\n\"x\": {" + keys + "}}}" }

func unset(column int, field, name string) string {
	return place(column) + field + `: ` + name + ` is not set: set it, or write ${` + name + `:-default}`
}

func place(column int) string {
	p := serversfile.Position{File: "f", Line: 2, Column: column}
	return p.String() + `: server "x": `
}

func TestPathWithSpacesIsACommandWhenItExists(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "my programs")
	commontest.OK(t, os.Mkdir(dir, 0o700))
	commontest.OK(t, os.WriteFile(filepath.Join(dir, "a -b"), nil, 0o700))
	env := map[string]string{"DIR": dir}
	one(t, server(`"command": "${DIR}/a -b"`), env)
	one(t, server(`"command": "./a -b", "cwd": "${DIR}"`), env)
}

func TestServerTooLargeForABoxIsRefused(t *testing.T) {
	fits := func(n int) error {
		return wrong(server(`"command": "a", "args": ["`+strings.Repeat("b", n)+`"]`), nil)
	}
	commontest.Check(t, fits(serversfile.MaxMarshal-200))
	err := fits(serversfile.MaxMarshal)
	if err == nil || !strings.HasPrefix(err.Error(), "f:2:1: server \"x\": ") || !strings.Contains(err.Error(), "a box takes at most 8192") {
		t.Error(err)
	}
}

func TestFileTooLargeIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "big.json")
	commontest.OK(t, os.WriteFile(path, make([]byte, serversfile.MaxFile+10), 0o600))
	_, _, err := serversfile.Load(path, nil)
	if err == nil || !strings.Contains(err.Error(), "larger than 1 MiB") {
		t.Error(err)
	}
}

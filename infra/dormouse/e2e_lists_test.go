//go:build e2e

package dormouse_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// pythonServer is a server without an SDK, which says that it announces changes of its tools.
// Its tools are in two files, of which the configuration names one.
const pythonServer = `import json, sys
from more import MORE
TOOLS = ["one"]
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m or "method" not in m:
        continue
    a = {"jsonrpc": "2.0", "id": m["id"]}
    if m["method"] == "initialize":
        a["result"] = {"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {"listChanged": True}}, "serverInfo": {"name": "mine", "version": "1"}}
    elif m["method"] == "tools/list":
        a["result"] = {"tools": [{"name": n, "inputSchema": {"type": "object"}} for n in TOOLS + MORE]}
    elif m["method"] == "tools/call":
        a["result"] = {"content": [{"type": "text", "text": "done"}]}
    else:
        a["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(a), flush=True)
`

// author is somebody who writes a server, and clients of both eras that have seen its tools.
type author struct {
	*machine
	folder string
}

func newAuthor(t *testing.T) *author {
	m := newMachine(t, nil)
	a := &author{m, t.TempDir()}
	write(t, filepath.Join(a.folder, "server.py"), pythonServer)
	write(t, filepath.Join(a.folder, "more.py"), "MORE = []\n")
	a.adds()
	m.start(sleepy()...)
	a.see("one")
	m.asleep()
	return a
}

func (a *author) adds() string {
	a.t.Helper()
	return a.does("add", "mine", "--", "python3", filepath.Join(a.folder, "server.py"))
}

// edits adds a tool, to the file that the configuration names or to the one behind it.
func (a *author) edits(hidden bool) {
	a.t.Helper()
	if hidden {
		write(a.t, filepath.Join(a.folder, "more.py"), "MORE = [\"two\"]\n")
		return
	}
	write(a.t, filepath.Join(a.folder, "server.py"), strings.Replace(pythonServer, `["one"]`, `["one", "two"]`, 1))
}

// see checks the tools that new clients of each era and of two kinds get.
func (a *author) see(want string) {
	a.t.Helper()
	for _, capabilities := range []string{`{}`, `{"sampling":{},"elicitation":{}}`} {
		c := a.client("mine")
		commontest.OK(a.t, c.open(`{"protocolVersion":"2025-11-25","capabilities":`+capabilities+`,"clientInfo":{"name":"e2e","version":"1"}}`))
		if got := toolsIn(c.list()); got != want {
			a.t.Errorf("a client of 2025-11-25 with %s gets the tools %q, want %q", capabilities, got, want)
		}
	}
	commontest.EqualIn(a.t, "a client of 2026-07-28 gets the tools", want, toolsIn(a.client("mine").served(wire.MethodToolsList, "", "", "{}").Result))
}

func toolsIn(list []byte) string {
	var names []string
	for tool := range wire.Elements(wire.Lookup(list, "tools")) {
		name, _ := wire.String(wire.Lookup(tool, "name"))
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

// A new tool is there for the next client, whatever the author does after the edit.
func TestE2EEditedServerIsListedAnew(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		hidden bool // the edit is in a file that Dormouse does not know of
		then   func(*author)
	}{
		"nothing":        {false, func(*author) {}},
		"killed":         {false, func(a *author) { a.killAll(); a.start(sleepy()...) }},
		"stop":           {true, func(a *author) { a.says("stop", "mine") }},
		"stop all":       {true, func(a *author) { a.says("stop", "--all") }},
		"reload":         {true, func(a *author) { a.says("reload") }},
		"doctor":         {true, func(a *author) { a.says("doctor", "mine", "--servers", a.servers, "--listen", "127.0.0.1:0") }},
		"remove and add": {true, func(a *author) { a.does("remove", "mine"); a.added() }},
		"remove, down, and add": {true, func(a *author) {
			a.interrupt()
			a.does("remove", "mine")
			a.added()
			a.start(sleepy()...)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAuthor(t)
			a.edits(c.hidden)
			c.then(a)
			a.see("one two")
			a.asleep()
			a.see("one two")
		})
	}
}

// added adds the server again. The command counts the tools of the edited file.
func (a *author) added() {
	a.t.Helper()
	commontest.Contains(a.t, "add said", ": 2 tools in ", a.adds())
}

// says executes a command of operators.
func (a *author) says(verb string, args ...string) {
	a.t.Helper()
	cmd := a.command(verb, args...)
	if out, err := cmd.CombinedOutput(); err != nil && verb != "doctor" { // which finds other things, too
		a.t.Fatalf("dormouse %s: %v: %s", verb, err, out)
	}
}

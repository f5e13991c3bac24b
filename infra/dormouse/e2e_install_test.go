//go:build e2e

package dormouse_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// index is a registry of npm with any package that is asked for, in versions 1.0.0 and, as the
// newest, those of newer. Each package is a server with one tool, which names its version. A test holds the answers back, so it decides how slow the index is.
type index struct {
	*httptest.Server
	metadata, tarballs *gate
	newer              []string
}

// gate holds requests back until it is opened.
type gate struct {
	once sync.Once
	open chan struct{}
}

func newGate() *gate { return &gate{open: make(chan struct{})} }

func (g *gate) opens() { g.once.Do(func() { close(g.open) }) }

// smallServer is a server of MCP with one tool, in JavaScript without dependencies.
const smallServer = `#!/usr/bin/env node
const answers = {
  initialize: (p) => ({protocolVersion: p.protocolVersion, capabilities: {tools: {}}, serverInfo: {name: 'small', version: '1.0.0'}}),
  'tools/list': () => ({tools: [{name: 'echo', description: 'Of VERSION.', inputSchema: {type: 'object', properties: {text: {type: 'string'}}, required: ['text']}}]}),
  'tools/call': (p) => ({content: [{type: 'text', text: p.arguments.text}]}),
};
require('readline').createInterface({input: process.stdin}).on('line', (line) => {
  const m = JSON.parse(line), a = answers[m.method];
  if (m.id !== undefined) console.log(JSON.stringify({jsonrpc: '2.0', id: m.id, ...(a ? {result: a(m.params)} : {error: {code: -32601, message: 'none'}})}));
});
`

// newIndex starts a registry whose gates are closed.
func newIndex(t *testing.T, newer ...string) *index {
	t.Helper()
	x := &index{metadata: newGate(), tarballs: newGate(), newer: newer}
	x.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, file, ok := strings.Cut(strings.Trim(r.URL.Path, "/"), "/-/")
		hold := x.metadata
		if ok && file != "" {
			hold = x.tarballs
		}
		select {
		case <-hold.open:
		case <-r.Context().Done():
			return
		}
		if hold == x.tarballs {
			_, _ = w.Write(tarball(t, name, strings.TrimSuffix(strings.TrimPrefix(file, name+"-"), ".tgz")))
			return
		}
		versions := append([]string{"1.0.0"}, x.newer...)
		all := map[string]any{}
		for _, version := range versions {
			sum := sha512.Sum512(tarball(t, name, version))
			all[version] = map[string]any{
				"name": name, "version": version, "bin": map[string]any{name: "index.js"},
				"dist": map[string]any{"tarball": x.URL + "/" + name + "/-/" + name + "-" + version + ".tgz", "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])},
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"name": name, "dist-tags": map[string]any{"latest": versions[len(versions)-1]}, "versions": all})
	}))
	t.Cleanup(func() {
		x.metadata.opens()
		x.tarballs.opens()
		x.CloseClientConnections()
		x.Close()
	})
	return x
}

func tarball(t *testing.T, name, version string) []byte {
	t.Helper()
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	w := tar.NewWriter(zipped)
	for _, f := range [][2]string{
		{"package.json", fmt.Sprintf(`{"name": %q, "version": %q, "bin": {%[1]q: "index.js"}}`, name, version)},
		{"index.js", strings.ReplaceAll(smallServer, "VERSION", version)},
	} {
		file, text := f[0], f[1]
		if err := w.WriteHeader(&tar.Header{Name: "package/" + file, Mode: 0o755, Size: int64(len(text)), ModTime: time.Unix(0, 0)}); err != nil {
			t.Error(err)
		}
		_, _ = w.Write([]byte(text))
	}
	_, _ = w.Close(), zipped.Close()
	return out.Bytes()
}

// from has a machine install from an index, with nothing installed before.
func (m *machine) from(x *index) {
	m.t.Helper()
	home := m.t.TempDir()
	write(m.t, filepath.Join(home, ".npmrc"), "registry="+x.URL+"/\naudit=false\nupdate-notifier=false\n")
	m.env = append(m.env, "HOME="+home, "DORMOUSE_CACHE="+filepath.Join(m.t.TempDir(), "cache"), "npm_config_registry="+x.URL+"/")
}

// person is a terminal of 80 columns on which somebody types one command.
type person struct {
	t      *testing.T
	master *os.File
	cmd    *exec.Cmd
	shown  string
}

// types starts a command on a terminal.
func (m *machine) types(verb string, args ...string) *person {
	m.t.Helper()
	cmd := m.command(verb, args...)
	cmd.Dir = filepath.Dir(m.servers)
	cmd.Env = append(cmd.Env, "TERM=xterm", "CI=")
	master, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 40, Cols: 80})
	commontest.OK(m.t, err)
	m.t.Cleanup(func() { _, _, _ = master.Close(), cmd.Process.Kill(), cmd.Wait() })
	return &person{t: m.t, master: master, cmd: cmd}
}

// sees waits until the terminal shows a text. No line is wider than the terminal.
func (p *person) sees(text string) {
	p.t.Helper()
	commontest.OK(p.t, p.master.SetReadDeadline(time.Now().Add(patience)))
	for piece := make([]byte, 256); !strings.Contains(p.shown, text); {
		n, err := p.master.Read(piece)
		p.shown += string(piece[:n])
		if err != nil && !strings.Contains(p.shown, text) {
			p.t.Fatalf("%v; it shows %q, want %q", err, p.shown, text)
		}
	}
}

// The first command of the README shows what it does while the index is slow.
func TestE2EAWaitForASlowIndexHasAFace(t *testing.T) {
	t.Parallel()
	m, x := machineOf(t, map[string]any{}), newIndex(t)
	m.from(x)
	p := m.types("add", "slow", "--", "npx", "-y", "slow-server")
	p.sees("slow-server  resolving … ")
	x.metadata.opens()
	p.sees("slow  installing slow-server … ")
	p.sees(" … 2.") // it moves
	x.tarballs.opens()
	p.sees("added slow 1.0.0: 1 tool in ")
	for _, line := range strings.FieldsFunc(p.shown, func(r rune) bool { return r == '\r' || r == '\n' }) {
		if n := len([]rune(strings.ReplaceAll(line, "\x1b[J", ""))); n > 80 {
			t.Errorf("a line of %d columns: %q", n, line)
		}
	}
}

// No client waits for an install. The first client of each server that a machine takes is
// answered before anything can be installed, and hears of the tools when they are known.
func TestE2ENoClientWaitsForAnInstall(t *testing.T) {
	t.Parallel()
	const many = 12
	file := map[string]any{}
	for i := range many {
		file[fmt.Sprintf("s%d", i)] = map[string]any{"command": "npx", "args": []string{"-y", fmt.Sprintf("slow-%d", i)}}
	}
	m, x := machineOf(t, file), newIndex(t)
	if m.programs {
		m.programs = false // functions that are programs of their own prepare nothing
	}
	m.from(x)
	m.start()
	type client struct {
		*mcp.ClientSession
		hears chan struct{}
	}
	var clients []client
	for name, url := range m.urls {
		c := client{hears: make(chan struct{}, 8)}
		var err error
		c.ClientSession, err = mcp.NewClient(&mcp.Implementation{Name: "first", Version: "1"}, &mcp.ClientOptions{
			ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { c.hears <- struct{}{} },
		}).Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url}, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if list, err := c.ListTools(t.Context(), nil); err != nil || len(list.Tools) != 0 {
			t.Fatalf("%s lists %v, %v before it is installed", name, list, err)
		}
		clients = append(clients, c)
	}
	x.metadata.opens()
	x.tarballs.opens()
	for _, c := range clients {
		select {
		case <-c.hears:
		case <-time.After(4 * patience):
			t.Fatal("a client hears of no tools")
		}
		list, err := c.ListTools(t.Context(), nil)
		if err != nil || len(list.Tools) != 1 {
			t.Fatalf("after that: %v, %v", list, err)
		}
		said, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"text": "hi"}})
		if err != nil || said.Content[0].(*mcp.TextContent).Text != "hi" {
			t.Fatal(said, err)
		}
	}
}

// prepare installs the whole file side by side, and says of each server what came of it.
func TestE2EPrepareInstallsTheWholeFile(t *testing.T) {
	t.Parallel()
	m, x := machineOf(t, map[string]any{
		"one": map[string]any{"command": "npx", "args": []string{"-y", "slow-1"}}, "two": map[string]any{"command": "npx", "args": []string{"-y", "slow-2"}},
		"bad": map[string]any{"command": "sh", "args": []string{"-c", "echo no license >&2; exit 3"}},
	}), newIndex(t)
	m.from(x)
	p := m.types("prepare", "--servers", m.servers)
	p.sees("one  resolving slow-1 … ")
	p.sees("two  resolving slow-2 … ")
	x.metadata.opens()
	x.tarballs.opens()
	p.sees("2 of 3 servers ready")
	for _, want := range []string{"one  1 tool  ", "two  1 tool  ", "bad  failed: exited with code 3 before it answered initialize"} {
		p.sees(want)
	}
}

// A newer version is tried beside the served one, its tools are compared, and the file and its
// lock take it. The way back is the same.
func TestE2EUpgradeTakesANewerVersionAndGoesBack(t *testing.T) {
	t.Parallel()
	m, x := machineOf(t, map[string]any{"small": map[string]any{
		"command": "npx", "args": []string{"-y", "small-server@1.0.0"}, "x-dormouse": map[string]any{"tools": map[string]any{"pin": true}},
	}}), newIndex(t, "2.0.0")
	if m.programs {
		m.programs = false // functions that are programs of their own prepare nothing
	}
	m.from(x)
	x.metadata.opens()
	x.tarballs.opens()
	m.start()
	lists := func(version string) {
		t.Helper()
		if list := string(m.session("small").list()); !strings.Contains(list, "Of "+version+".") {
			t.Errorf("a client gets %s, want the tool of %s", list, version)
		}
		text, err := os.ReadFile(m.servers)
		if err != nil || !strings.Contains(string(text), `"small-server@`+version+`"`) {
			t.Errorf("the servers file has %s, %v", text, err)
		}
		lock, err := os.ReadFile(strings.TrimSuffix(m.servers, ".json") + ".lock.json")
		if err != nil || !strings.Contains(string(lock), "Of "+version+".") {
			t.Errorf("the lock has %s, %v", lock, err)
		}
	}
	m.does("prepare", "small")
	lists("1.0.0")
	if said := m.does("upgrade"); !strings.Contains(said, "small  small-server  1.0.0    2.0.0") {
		t.Errorf("upgrade lists %s", said)
	}
	if said := m.does("upgrade", "small"); !strings.Contains(said, "description: Of [-1.0.0.-]{+2.0.0.+}") || !strings.Contains(said, "dormouse upgrade small --to 1.0.0") {
		t.Errorf("upgrade says %s", said)
	}
	lists("2.0.0")
	if said, err := m.tries("upgrade", "small", "--to", "3.0.0"); err == nil || !strings.Contains(said, "small stays at small-server 2.0.0") {
		t.Errorf("an upgrade to no version says %s", said)
	}
	lists("2.0.0")
	m.does("upgrade", "small", "--to", "1.0.0")
	lists("1.0.0")
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(m.servers), ".upgrade-*")); left != nil {
		t.Errorf("the trials leave %s", left)
	}
}

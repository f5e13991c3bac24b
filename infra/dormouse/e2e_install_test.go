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
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// index is a registry of npm with any package that is asked for, in versions 1.0.0 and, as the
// newest, those of newer. Each package is a server with one tool, which names its version. A
// test holds the answers back, so it decides how slow the index is.
type index struct {
	*httptest.Server
	metadata, tarballs *gate
	newer              []string
}

// opens lets the index answer everything.
func (x *index) opens() {
	x.metadata.opens()
	x.tarballs.opens()
}

// gate holds requests back until it is opened.
type gate struct {
	once sync.Once
	open chan struct{} // closed once requests pass
}

func newGate() *gate { return &gate{open: make(chan struct{})} }

func (g *gate) opens() { g.once.Do(func() { close(g.open) }) }

// smallServer is a server of MCP with one tool, in JavaScript without dependencies. The tool says
// how far it is until there is the file that its argument until names.
const smallServer = `#!/usr/bin/env node
const say = (m) => console.log(JSON.stringify({jsonrpc: '2.0', ...m}));
const answers = {
  initialize: (p) => ({protocolVersion: p.protocolVersion, capabilities: {tools: {}}, serverInfo: {name: 'small', version: '1.0.0'}}),
  'tools/list': () => ({tools: [{name: 'echo', description: 'Of VERSION.', inputSchema: {type: 'object', properties: {message: {type: 'string'}, until: {type: 'string'}}, required: ['message']}}]}),
  'tools/call': async (p) => {
    for (const file = p.arguments.until; file && !require('fs').existsSync(file); await new Promise((next) => setTimeout(next, 50)))
      say({method: 'notifications/progress', params: {progressToken: p._meta.progressToken, progress: 1, total: 2, message: 'half'}});
    return {content: [{type: 'text', text: 'Echo: ' + p.arguments.message}]};
  },
};
require('readline').createInterface({input: process.stdin}).on('line', async (line) => {
  const m = JSON.parse(line), a = answers[m.method];
  if (m.id !== undefined) say({id: m.id, ...(a ? {result: await a(m.params)} : {error: {code: -32601, message: 'none'}})});
});
`

// newIndex starts a registry whose gates are closed.
func newIndex(t *testing.T, newer ...string) *index {
	t.Helper()
	x := &index{metadata: newGate(), tarballs: newGate(), newer: newer}
	x.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, file, ok := strings.Cut(strings.Trim(r.URL.Path, "/"), "/-/") // of a package of a scope, too
		short := path.Base(name)
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
			_, _ = w.Write(tarball(t, name, strings.TrimSuffix(strings.TrimPrefix(file, short+"-"), ".tgz")))
			return
		}
		versions := append([]string{"1.0.0"}, x.newer...)
		all := map[string]any{}
		for _, version := range versions {
			sum := sha512.Sum512(tarball(t, name, version))
			all[version] = map[string]any{
				"name": name, "version": version, "bin": map[string]any{short: "index.js"},
				"dist": map[string]any{"tarball": x.URL + "/" + name + "/-/" + short + "-" + version + ".tgz", "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])},
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"name": name, "dist-tags": map[string]any{"latest": versions[len(versions)-1]}, "versions": all})
	}))
	t.Cleanup(func() {
		x.opens()
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
		{"package.json", fmt.Sprintf(`{"name": %q, "version": %q, "bin": {%q: "index.js"}}`, name, version, path.Base(name))},
		{"index.js", strings.ReplaceAll(smallServer, "VERSION", version)},
	} {
		file, text := f[0], f[1]
		commontest.Check(t, w.WriteHeader(&tar.Header{Name: "package/" + file, Mode: 0o755, Size: int64(len(text)), ModTime: time.Unix(0, 0)}))
		_, _ = w.Write([]byte(text))
	}
	_, _ = w.Close(), zipped.Close()
	return out.Bytes()
}

// from has a machine install from an index, with nothing installed before, and returns the home
// folder.
func (m *machine) from(x *index) (home string) {
	m.t.Helper()
	home = m.t.TempDir()
	write(m.t, filepath.Join(home, ".npmrc"), "registry="+x.URL+"/\naudit=false\nupdate-notifier=false\n")
	m.env = append(m.env, "HOME="+home, "DORMOUSE_CACHE="+filepath.Join(m.t.TempDir(), "cache"), "npm_config_registry="+x.URL+"/")
	return home
}

// No client waits for an install. The first client of each server that a machine takes is
// answered before anything can be installed, and hears of the tools when they are known.
func TestE2ENoClientWaitsForAnInstall(t *testing.T) {
	t.Parallel()
	file := map[string]any{}
	for _, name := range []string{"a", "b", "c"} {
		file[name] = map[string]any{"command": "npx", "args": []string{"-y", "slow-" + name}}
	}
	m, x := machineOf(t, file), newIndex(t)
	m.programs = false // functions that are programs of their own prepare nothing
	m.from(x)
	m.start()
	type first struct {
		*mcp.ClientSession
		hears chan struct{} // that the list of tools has changed
	}
	var clients []first
	for name, url := range m.urls {
		c := first{hears: make(chan struct{}, 8)}
		var err error
		c.ClientSession, err = mcp.NewClient(&mcp.Implementation{Name: "first", Version: "1"}, &mcp.ClientOptions{
			ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { c.hears <- struct{}{} },
		}).Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url}, nil)
		commontest.OKIn(t, name, err)
		t.Cleanup(func() { _ = c.Close() })
		if list, err := c.ListTools(t.Context(), nil); err != nil || len(list.Tools) != 0 {
			t.Fatalf("%s lists %v, %v before it is installed", name, list, err)
		}
		clients = append(clients, c)
	}
	x.opens()
	for _, c := range clients {
		select {
		case <-c.hears:
		case <-time.After(4 * patience):
			t.Fatal("a client hears of no tools")
		}
		said, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"message": "hi"}})
		if err != nil || said.Content[0].(*mcp.TextContent).Text != "Echo: hi" {
			t.Fatal(said, err)
		}
	}
}

// A newer version is tried beside the served one, its tools are compared, and the file and its
// lock take it. The way back is the same.
func TestE2EUpgradeTakesANewerVersionAndGoesBack(t *testing.T) {
	t.Parallel()
	m, x := machineOf(t, map[string]any{"small": map[string]any{
		"command": "npx", "args": []string{"-y", "small-server@1.0.0"}, "x-dormouse": map[string]any{"tools": map[string]any{"pin": true}},
	}}), newIndex(t, "2.0.0")
	m.programs = false // functions that are programs of their own prepare nothing
	m.from(x)
	x.opens()
	m.start()
	lists := func(version string) {
		t.Helper()
		commontest.Contains(t, "the list of a client", "Of "+version+".", string(m.session("small").list()))
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
	commontest.Contains(t, "upgrade says", "description: Of [-1.0.0.-]{+2.0.0.+}", m.does("upgrade", "small"))
	lists("2.0.0")
	if said, err := m.tries("upgrade", "small", "--to", "3.0.0"); err == nil {
		t.Errorf("an upgrade to no version says %s", said)
	}
	lists("2.0.0")
	m.does("upgrade", "small", "--to", "1.0.0")
	lists("1.0.0")
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(m.servers), ".upgrade-*")); left != nil {
		t.Errorf("the trials leave %s", left)
	}
}

package main

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// builds builds dormouse and the keeper once, beside the server of the tests.
var builds = sync.OnceValue(func() error {
	for program, from := range map[string][2]string{"dormouse": {"../../..", "./infra/cmd/dormouse"}, "dormouse-keeper": {".", "."}} {
		cmd := exec.CommandContext(context.Background(), "go", "build", "-o", filepath.Join(filepath.Dir(serverProgram), program), from[1])
		cmd.Dir, cmd.Env = from[0], append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	return nil
})

// built returns a folder with dormouse, and the keeper beside it.
func built(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	err := errors.Join(builds(), os.Chmod(filepath.Dir(dir), 0o755)) // another user runs them
	for _, program := range []string{"dormouse", "dormouse-keeper"} {
		err = errors.Join(err, os.Link(filepath.Join(filepath.Dir(serverProgram), program), filepath.Join(dir, program)))
	}
	must(t, err)
	return dir
}

// lines has the output of a running program.
type lines struct {
	mu   sync.Mutex
	more sync.Cond
	all  []string
	over bool

	killed bool // the test has killed it
}

// follow starts a program. The test ends it, and shows its output if it has failed.
func follow(t testing.TB, cmd *exec.Cmd) *lines {
	t.Helper()
	l := &lines{}
	l.more.L = &l.mu
	r, w, err := os.Pipe()
	must(t, err)
	cmd.Stdout, cmd.Stderr = w, w
	must(t, errors.Join(cmd.Start(), w.Close()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for in := bufio.NewScanner(r); in.Scan(); {
			l.mu.Lock()
			l.all = append(l.all, in.Text())
			l.mu.Unlock()
			l.more.Broadcast()
		}
		l.mu.Lock()
		l.over = true
		l.mu.Unlock()
		l.more.Broadcast()
	}()
	t.Cleanup(func() {
		if err := errors.Join(cmd.Process.Signal(os.Interrupt), cmd.Wait()); err != nil && !l.killed {
			t.Error(err)
		}
		<-ended
		if t.Failed() {
			t.Log(strings.Join(l.all, "\n"))
		}
	})
	return l
}

// wait waits until n lines hold the text.
func (l *lines) wait(t testing.TB, text string, n int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		found := 0
		for _, line := range l.all {
			if strings.Contains(line, text) {
				found++
			}
		}
		if found >= n {
			return
		}
		if l.over {
			t.Fatalf("it ended before it said %q", text)
		}
		l.more.Wait()
	}
}

// find returns what a pattern finds first in the lines so far.
func (l *lines) find(t testing.TB, pattern *regexp.Regexp) string {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	found := pattern.FindString(strings.Join(l.all, "\n"))
	if found == "" {
		t.Fatalf("no line has %s", pattern)
	}
	return found
}

// Servers whose commands are "docker run", with the arguments that manuals name, start where
// there is no Docker, cold and after a sleep. So does an image from the MCP registry. The error
// for an argument that a box cannot honor names the argument.
func TestDockerEntriesStartWithoutDocker(t *testing.T) {
	a := as{1000, ""}
	programs, data := built(t), a.folder(t)
	ref := push(t, served(t), v1.Config{Entrypoint: []string{"/server"}, Cmd: []string{"mcp"}}, withServer(t))
	host, err := os.ReadFile("/proc/version")
	must(t, err)
	type server struct {
		Command  string            `json:"command"`
		Args     []string          `json:"args"`
		Env      map[string]string `json:"env,omitempty"`
		Settings any               `json:"x-dormouse,omitempty"`
	}
	box := func(settings map[string]any) map[string]any {
		return map[string]any{"idle_seconds": 1, "record": "off", "box": settings}
	}
	docker := func(words string, settings map[string]any) server {
		args := append([]string{"run"}, strings.Fields(strings.ReplaceAll(words, "IMAGE", ref))...)
		return server{"docker", args, map[string]string{"GREETING": "hello"}, box(settings)}
	}
	starts := map[string]server{ // with the arguments that their manuals name
		"github":     docker("run -i --rm -e GREETING IMAGE"[4:], nil),
		"playwright": docker("-i --rm --init --pull=always -e GREETING IMAGE", nil),
		"filesystem": docker("-i --rm --mount type=bind,src="+data+",dst=/projects,ro -e GREETING IMAGE mcp /projects", nil),
		"git":        docker("--rm -i -v "+data+":/workspace -e GREETING IMAGE", nil),
		"postgres":   docker("-i --rm -e GREETING=hello IMAGE mcp postgresql://host.test:5432/db", nil),
		"time":       docker("-i --rm --network none --read-only --memory 512m --cpus 1 -e GREETING IMAGE", nil),
		"grafana":    docker("--rm --name grafana -l a=b -u 1001:1002 -w /home/node -e GREETING IMAGE mcp -t stdio", nil),
		"sealed":     docker("-i --rm -e GREETING IMAGE", map[string]any{"sealed": true, "profile": "network_basic"}),
		"kept":       docker("-i --rm -e GREETING IMAGE", map[string]any{"sealed": true, "snapshot": "principal"}),
		"command":    {"/server", []string{"mcp"}, map[string]string{"GREETING": "hello"}, box(map[string]any{"sealed": true, "image": ref})},
	}
	all := map[string]any{"privileged": docker("-i --privileged IMAGE", nil)}
	for name, s := range starts {
		all[name] = s
	}
	t.Setenv("PATH", filepath.Join(data, "bin"))
	log, call := a.hosts(t, programs, data, all)
	starts["weather"] = server{}
	a.adds(t, programs, data, "weather", map[string]any{
		"registryType": "oci", "identifier": strings.TrimSuffix(ref, ":v1"), "version": "v1", "transport": map[string]string{"type": "stdio"},
		"environmentVariables": []any{map[string]any{"name": "GREETING", "value": "hello"}}, "packageArguments": []any{map[string]any{"type": "positional", "value": "mcp"}},
	})
	for name := range starts {
		t.Run(name, func(t *testing.T) {
			for n := range 2 { // cold, and after a sleep
				out, err := call(name)
				log.wait(t, " "+name+" asleep", n+1)
				if err != nil || !strings.Contains(out, "hello") || strings.Contains(out, string(host)) {
					t.Errorf("%v: %s", err, out)
				}
				if want := fmt.Sprintf("kept %d, not 0", n); name == "kept" && !strings.Contains(out, want) {
					t.Errorf("want %s: %s", want, out)
				}
			}
		})
	}
	if out, err := call("privileged"); err == nil || !strings.Contains(out, "--privileged") {
		t.Errorf("%v, %s", err, out)
	}
}

// adds has dormouse add a server of the MCP registry, which has one package. Add starts it.
func (a as) adds(t *testing.T, programs, data, name string, packaged any) {
	t.Helper()
	listed, err := json.Marshal(map[string]any{"server": map[string]any{"name": "io.test/" + name, "version": "1.0.0", "packages": []any{packaged}}})
	must(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v0.1/servers/{name}/versions/latest", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("name") == "io.test/"+name {
			_, _ = w.Write(listed) // if this fails, the client sees it
		}
	})
	registry := httptest.NewServer(mux)
	defer registry.Close()
	cmd := a.command(filepath.Join(programs, "dormouse"), "add", "io.test/"+name, "--registry", registry.URL, "--servers", filepath.Join(data, "servers.json"), "--data", filepath.Join(data, "state"))
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), ": 1 tool in ") {
		t.Fatalf("%v: %s", err, out)
	}
}

// hosts runs dormouse with these servers in a simulated task. The function call calls the tool
// look of a server, and returns what the command prints.
func (a as) hosts(t *testing.T, programs, data string, servers map[string]any) (log *lines, call func(server string) (string, error)) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"mcpServers": servers})
	must(t, err)
	file := filepath.Join(data, "servers.json")
	must(t, os.WriteFile(file, text, 0o644))
	t.Setenv("HOME", data)
	at := []string{"--data", filepath.Join(data, "state")}
	cmd := a.command(filepath.Join(programs, "dormouse"), append([]string{"run", "--idle", "1s", "--servers", file, "--listen", "127.0.0.1:0", "--sockets", "127.0.0.1:0"}, at...)...)
	log = follow(t, cmd)
	log.wait(t, "Nothing runs until", 1)
	return log, func(server string) (string, error) {
		cmd := a.command(filepath.Join(programs, "dormouse"), append([]string{"call", server, "look"}, at...)...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

// nodeServer returns an MCP server for Node.js. Its one tool, "look", returns what the function
// look returns, or the error that look throws. The text own defines look.
func nodeServer(own string) string {
	return `#!/usr/bin/env node
` + own + `
require("readline").createInterface({input: process.stdin}).on("line", async line => {
  const m = JSON.parse(line)
  if (m.id === undefined) return
  let result = {}
  if (m.method == "initialize") result = {protocolVersion: m.params.protocolVersion, capabilities: {tools: {}}, serverInfo: {name: "n", version: "1"}}
  if (m.method == "tools/list") result = {tools: [{name: "look", inputSchema: {type: "object"}}]}
  if (m.method == "tools/call") try {
    result = {content: [{type: "text", text: await look()}]}
  } catch (e) {
    result = {content: [{type: "text", text: String(e.cause ?? e)}], isError: true}
  }
  console.log(JSON.stringify({jsonrpc: "2.0", id: m.id, result}))
})`
}

// pythonServer is like nodeServer, for Python. The entry point of a package is main.
func pythonServer(own string) string {
	return `import json, os, sys
` + own + `
def main():
    for line in sys.stdin:
        m = json.loads(line)
        if "id" not in m:
            continue
        result = {}
        if m["method"] == "initialize":
            result = {"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "p", "version": "1"}}
        if m["method"] == "tools/list":
            result = {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]}
        if m["method"] == "tools/call":
            result = {"content": [{"type": "text", "text": look()}]}
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": result}), flush=True)
if __name__ == "__main__":
    main()
`
}

// The tool of these servers says what its server sees, and counts its calls in the workspace.
// SECRET stands for the path of a file beside the servers file.
var (
	nodeLook = nodeServer(`const fs = require("fs")
const read = f => { try { return fs.readFileSync(f, "utf8") } catch { return "" } }
const look = () => {
  const n = read("count").length
  fs.writeFileSync("count", read("count") + ".")
  return [read("/proc/version"), "kept " + n, "secret " + read("SECRET"), process.env.GREETING].join(" ")
}`)
	pythonLook = pythonServer(`def read(f):
    try:
        return open(f).read()
    except OSError:
        return ""
def look():
    n = len(read("count"))
    with open("count", "a") as f:
        f.write(".")
    return " ".join([read("/proc/version"), "kept %d" % n, "secret " + read("SECRET"), os.environ["GREETING"]])`)
)

// registries serves a registry of npm, and an index of Python below /simple, with one package
// each.
func registries(t *testing.T, secret string) string {
	t.Helper()
	var npm, wheel bytes.Buffer
	packed := gzip.NewWriter(&npm)
	w := tar.NewWriter(packed)
	z := zip.NewWriter(&wheel)
	const manifest, info = `{"name": "sealed-npm", "version": "1.0.0", "bin": "server.js"}`, "sealed_pypi-1.0.dist-info/"
	for name, text := range map[string]string{"package/package.json": manifest, "package/server.js": strings.ReplaceAll(nodeLook, "SECRET", secret)} {
		must(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text))}))
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"sealed_pypi.py": strings.ReplaceAll(pythonLook, "SECRET", secret), info + "METADATA": "Metadata-Version: 2.1\nName: sealed-pypi\nVersion: 1.0\n", info + "RECORD": "",
		info + "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n", info + "entry_points.txt": "[console_scripts]\nsealed-pypi = sealed_pypi:main\n",
	} {
		f, err := z.Create(name)
		must(t, err)
		if _, err := io.WriteString(f, text); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []io.Closer{w, packed, z} {
		must(t, c.Close())
	}
	const wheelName = "sealed_pypi-1.0-py3-none-any.whl"
	mux := http.NewServeMux()
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	sends := func(at, kind string, body []byte) {
		mux.HandleFunc(at, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			_, _ = w.Write(body) // if this fails, the client sees it
		})
	}
	sum := sha512.Sum512(npm.Bytes())
	listed := fmt.Sprintf(`{"name": "sealed-npm", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {"name": "sealed-npm", "version": "1.0.0", "bin": {"sealed-npm": "server.js"}, "dist": {"tarball": "%s/npm.tgz", "integrity": "sha512-%s"}}}}`, s.URL, base64.StdEncoding.EncodeToString(sum[:]))
	sends("/sealed-npm", "application/json", []byte(listed))
	sends("/npm.tgz", "application/octet-stream", npm.Bytes())
	sends("/simple/sealed-pypi/", "text/html", []byte(`<a href="/`+wheelName+`">`+wheelName+`</a>`))
	sends("/"+wheelName, "application/octet-stream", wheel.Bytes())
	return s.URL
}

// installer returns a folder in dir with uv: the one of this machine, or one that pip fetches once
// for all tests. Otherwise each cold start would fetch uv from the internet.
func installer(t *testing.T, dir string) string {
	t.Helper()
	uv, err := exec.LookPath("uv")
	if err != nil {
		cache, err := os.UserCacheDir()
		must(t, err)
		into := filepath.Join(cache, "dormouse-test", "keeper")
		if uv = filepath.Join(into, "bin", "uv"); exec.CommandContext(t.Context(), uv, "--version").Run() != nil {
			if out, err := exec.CommandContext(t.Context(), "python3", "-m", "pip", "install", "--quiet", "--upgrade", "--target", into, "uv").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
	}
	text, err := os.ReadFile(uv)
	bin := filepath.Join(dir, "bin")
	if err = errors.Join(err, os.MkdirAll(bin, 0o755), os.WriteFile(filepath.Join(bin, "uv"), text, 0o755)); err != nil {
		t.Fatal(err)
	}
	return bin
}

// Sealed servers from npm and PyPI see what was installed for them, the programs of the machine,
// and their workspace, which is kept over a sleep. Without the keeper they do not start.
func TestServersOfPackagesAreSealed(t *testing.T) {
	a := as{1000, ""}
	programs, data := built(t), a.folder(t)
	secret := filepath.Join(data, "secret")
	host, err := os.ReadFile("/proc/version")
	must(t, err)
	script := filepath.Join(data, "own.js")
	for file, text := range map[string]string{secret: "s3cret", script: strings.ReplaceAll(nodeLook, "SECRET", secret)} {
		must(t, os.WriteFile(file, []byte(text), 0o644))
	}
	from := registries(t, secret)
	t.Setenv("npm_config_registry", from)
	t.Setenv("UV_INDEX", from+"/simple")
	t.Setenv("PATH", installer(t, data)+":/usr/local/bin:/usr/bin:/bin")
	server := func(box map[string]any, command string, args ...string) any {
		box["sealed"] = true
		return map[string]any{"command": command, "args": args, "env": map[string]string{"GREETING": "hello"}, "x-dormouse": map[string]any{"idle_seconds": 1, "record": "off", "box": box}}
	}
	starts := map[string]any{
		"npm":    server(map[string]any{}, "npx", "-y", "sealed-npm"),
		"pypi":   server(map[string]any{"profile": "default"}, "uvx", "sealed-pypi"),
		"script": server(map[string]any{"network": "off", "read_only_rootfs": true}, "node", script),
	}
	log, call := a.hosts(t, programs, data, starts)
	for name := range starts {
		t.Run(name, func(t *testing.T) {
			for n := range 2 { // cold, and after a sleep
				out, err := call(name)
				log.wait(t, " "+name+" asleep", n+1)
				if want := fmt.Sprintf("kept %d secret  hello", n); err != nil || !strings.Contains(out, want) || strings.Contains(out, strings.TrimSpace(string(host))) {
					t.Errorf("%v: %s, not %s", err, out, want)
				}
			}
		})
	}
	t.Run("without the keeper", func(t *testing.T) {
		must(t, os.Remove(filepath.Join(programs, "dormouse-keeper")))
		for name := range starts {
			if out, err := call(name); err == nil || !strings.Contains(out, "dormouse-keeper is neither") {
				t.Errorf("%v: %s", err, out)
			}
		}
	})
}

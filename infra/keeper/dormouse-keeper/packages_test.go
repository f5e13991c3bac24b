package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

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

package runner

import (
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// Servers that answer each request with an empty list of tools, in each language.
const (
	tinyNode = `#!/usr/bin/env node
require("readline").createInterface({input: process.stdin}).on("line", l => {
  const m = JSON.parse(l)
  if (m.id !== undefined) console.log(JSON.stringify({jsonrpc: "2.0", id: m.id, result: {tools: []}}))
}).on("close", () => process.exit())
`
	tinyPython = `import json, sys
def main():
    for line in sys.stdin:
        m = json.loads(line)
        if "id" in m:
            print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": {"tools": []}}), flush=True)
`
)

func parsed(t *testing.T, text string) serversfile.Server {
	t.Helper()
	all, _, err := serversfile.Parse([]byte(`{"mcpServers": {"s": `+text+`}}`), "servers.json", nil)
	commontest.OK(t, err)
	s, ok := all.Server("s")
	if !ok {
		t.Fatal("no server")
	}
	return s
}

// An image has what a server needs; a start asks no registry and no bucket.
func TestABakedServerStartsWithoutARegistry(t *testing.T) {
	for name, server := range map[string]string{
		"npm": `{"command": "npx", "args": ["-y", "srv", "--flag"]}`, "pypi": `{"command": "uvx", "args": ["py-srv"]}`,
	} {
		t.Run(name, func(t *testing.T) {
			i, from := published(t)
			from.publish("srv", "1.0.0", map[string]any{"bin": "cli.js"}, file("package/cli.js", tinyNode))
			from.index("py-srv", "py_srv-1.0.0-py3-none-any.whl", wheel(t, "py_srv", "1.0.0", nil, map[string]string{
				"py_srv.py": tinyPython, "py_srv-1.0.0.dist-info/entry_points.txt": "[console_scripts]\npy-srv = py_srv:main\n",
			}))
			python, version := pythonHere(t)
			// Bake installs into the folder that the image will have, so its paths are
			// right in the image.
			i.at.baked = filepath.Join(i.root, "image")
			baking := filepath.Join(i.root, "baking")
			baked, err := Bake(t.Context(), parsed(t, server), BakeConfig{
				Cache: baking, Work: i.at.work, Compile: true, Log: slog.New(slog.DiscardHandler),
				Image: provision.BakeConfig{To: i.at.baked, At: i.at.baked, Python: python, Version: version},
			})
			if err != nil {
				t.Fatalf("%+v, %v", baked, err)
			}
			commontest.OK(t, exec.CommandContext(t.Context(), "rm", "-rf", baking).Run())
			from.http.Close()
			before := from.asked.Load()
			commontest.EqualIn(t, "the image has the install", true, newBox(parsed(t, server), i.setup(), slog.New(slog.DiscardHandler)).provisioner.Baked())
			l, err := i.stage(server)
			if err != nil || !strings.HasPrefix(l.Command, filepath.Join(i.at.baked, baked)) || len(l.Reads) != 1 {
				t.Fatalf("%+v, %v", l, err)
			}
			if made, _ := filepath.Glob(filepath.Join(i.at.cache, "*", "*", "made-*")); from.asked.Load() != before || len(made) > 0 {
				t.Errorf("it installed: %v", made)
			}
			cmd := exec.CommandContext(t.Context(), l.Command, l.Args...)
			cmd.Env = append(os.Environ(), "PATH="+strings.Join(append(l.Path, os.Getenv("PATH")), ":"))
			in, err1 := cmd.StdinPipe()
			out, err2 := cmd.StdoutPipe()
			if err1 != nil || err2 != nil || cmd.Start() != nil {
				t.Fatal("it cannot be started", err1, err2)
			}
			_, err = io.WriteString(in, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`+"\n")
			commontest.OK(t, errors.Join(err, in.Close())) // the end of its stdin ends it
			if said, err := io.ReadAll(out); err != nil || !strings.Contains(strings.ReplaceAll(string(said), " ", ""), `"tools":[]`) {
				t.Errorf("%s, %v", said, err)
			}
			commontest.OK(t, cmd.Wait())
		})
	}
}

// pythonHere returns the path and the version, such as 3.11, of this machine's Python.
func pythonHere(t *testing.T) (path, version string) {
	t.Helper()
	path, err := exec.LookPath("python3")
	commontest.OK(t, err)
	said, err := exec.CommandContext(t.Context(), path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").Output()
	commontest.OK(t, err)
	return path, strings.TrimSpace(string(said))
}

// The interpreter of the image would not find its modules.
func TestAPackageForAnotherPythonIsNotBaked(t *testing.T) {
	i, from := published(t)
	from.index("py-srv", "py_srv-1.0.0-py3-none-any.whl", wheel(t, "py_srv", "1.0.0", nil, map[string]string{
		"py_srv.py": tinyPython, "py_srv-1.0.0.dist-info/entry_points.txt": "[console_scripts]\npy-srv = py_srv:main\n",
	}))
	python, version := pythonHere(t)
	to := filepath.Join(i.root, "image")
	_, err := Bake(t.Context(), parsed(t, `{"command": "uvx", "args": ["py-srv"]}`), BakeConfig{
		Cache: i.at.cache, Work: i.at.work, Compile: true, Log: slog.New(slog.DiscardHandler),
		Image: provision.BakeConfig{To: to, At: to, Python: python, Version: "2.7"},
	})
	want := "the image has Python 2.7, and this package was installed for Python " + version + ": bake it where python3 on the PATH is Python 2.7"
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something is in the image: %v", err)
	}
}

func TestAServerWithoutAPackageCannotBeBaked(t *testing.T) {
	b, err := Bake(t.Context(), parsed(t, `{"command": "node", "args": ["x.js"]}`), BakeConfig{
		Cache: t.TempDir(), Work: t.TempDir(), Log: slog.New(slog.DiscardHandler),
		Image: provision.BakeConfig{To: filepath.Join(t.TempDir(), "image"), At: "/x", Python: "/usr/bin/python3"},
	})
	if err == nil {
		t.Errorf("%+v", b)
	}
}

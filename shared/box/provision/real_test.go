package provision

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
)

// The tests here use npm, node and python3 of this machine and small packages of
// the public registries.

// real is a config with the programs and settings of this machine.
func real(root string) Config {
	environ := map[string]string{}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		environ[name] = value
	}
	return Config{Base: filepath.Join(root, "base"), Cache: filepath.Join(root, "cache"), Environ: environ, Confine: inSandbox}
}

// inSandbox makes the sandbox that a runner makes for a user whose interpreters are in the
// home folder.
func inSandbox(w Workshop) (Sandbox, error) {
	p := sandbox.Policy{Sockets: sandbox.InternetSockets, KeepUser: true, Workspace: w.Folder, Temp: filepath.Join(w.Folder, ".tmp"), Read: w.Read}
	if w.Offline {
		p.Sockets = sandbox.NoSockets
	}
	for _, program := range w.Programs {
		p.Read = append(p.Read, filepath.Dir(filepath.Dir(program)))
	}
	return sandbox.New(p, sandbox.Probe())
}

// execute runs a staged command as a box would, and returns its stdout.
func execute(t *testing.T, l Launch) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// env looks for the command in the PATH that it is given.
	cmd := exec.CommandContext(ctx, "env", append([]string{l.Command}, l.Args...)...)
	cmd.Dir = l.Cwd
	cmd.Env = []string{"PATH=" + strings.Join(append(l.Path, os.Getenv("PATH")), ":"), "HOME=" + t.TempDir()}
	for name, value := range l.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s", l.Command, err, &stderr)
	}
	return string(out)
}

func stageReal(t *testing.T, s *Provisioner) Launch {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	l, err := s.Provision(ctx, "p", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestRealNpxPackageRunsAlsoWithoutNetwork(t *testing.T) {
	cfg := real(t.TempDir())
	s := Server{Command: "npx", Args: []string{"-y", "semver@7", "1.2.3", "-i", "minor"}}
	if got := execute(t, stageReal(t, New(cfg, s))); got != "1.3.0\n" {
		t.Errorf("said %q", got)
	}
	cfg.Environ["PATH"] = filepath.Dir(program(t, "node")) // and a registry nobody answers for
	cfg.Environ["npm_config_registry"] = "http://127.0.0.1:1"
	if got := execute(t, stageReal(t, New(cfg, s))); got != "1.3.0\n" {
		t.Errorf("said %q", got)
	}
}

func TestRealNpxPackageThatDoesNotExist(t *testing.T) {
	s := New(real(t.TempDir()), Server{Command: "npx", Args: []string{"-y", "@modelcontextprotocol/no-such-server-at-all"}})
	_, err := s.Provision(t.Context(), "p", nil, nil)
	if err == nil || !strings.HasPrefix(err.Error(), "npm knows no @modelcontextprotocol/no-such-server-at-all: ") || !strings.Contains(err.Error(), "404") {
		t.Error(err)
	}
}

func TestRealUvxPackageRunsAlsoWithoutNetwork(t *testing.T) {
	cfg := real(t.TempDir())
	s := Server{Command: "uvx", Args: []string{"pycowsay", "hello"}}
	if got := execute(t, stageReal(t, New(cfg, s))); !strings.Contains(got, "hello") {
		t.Errorf("said %q", got)
	}
	cfg.Environ["PIP_INDEX_URL"] = "http://127.0.0.1:1"
	if got := execute(t, stageReal(t, New(cfg, s))); !strings.Contains(got, "hello") {
		t.Errorf("said %q", got)
	}
}

func TestRealUvxPackageThatDoesNotExist(t *testing.T) {
	s := New(real(t.TempDir()), Server{Command: "uvx", Args: []string{"mcp-no-such-server-at-all"}})
	_, err := s.Provision(t.Context(), "p", nil, nil)
	// The second text is uv's, on a machine that has it.
	because := err != nil && (strings.Contains(err.Error(), "No matching distribution") || strings.Contains(err.Error(), "was not found in the package registry"))
	if !because || !strings.HasPrefix(err.Error(), "PyPI knows no mcp-no-such-server-at-all, or has no built package") {
		t.Error(err)
	}
}

func TestRealPythonFolderRunsInItsVirtualEnvironment(t *testing.T) {
	r := newRig(t)
	r.write(map[string]string{
		"host/requirements.txt": "iniconfig==2.0.0\n",
		"host/server.py":        "import iniconfig, sys, os\nprint(iniconfig.__name__, sys.prefix == os.environ['VIRTUAL_ENV'], os.getcwd())\n",
	})
	cfg := real(r.root)
	s := New(cfg, Server{Command: r.host() + "/.venv/bin/python", Args: []string{r.host() + "/server.py"}, HostPath: r.host()})
	l := stageReal(t, s)
	if got, want := execute(t, l), "iniconfig True "+l.Workspace+"\n"; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}

func TestRealPythonProjectHasItsProgram(t *testing.T) {
	r := newRig(t)
	r.write(map[string]string{
		"host/pyproject.toml": "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'setuptools.build_meta'\n" +
			"[project]\nname = 'srv'\nversion = '1'\n[project.scripts]\nmy-srv = 'srv:main'\n[tool.setuptools]\npy-modules = ['srv']\n",
		"host/srv.py": "def main():\n    print('served')\n",
	})
	before := list(t, r.host())
	s := New(real(r.root), Server{Command: r.host() + "/.venv/bin/my-srv", HostPath: r.host()})
	if got := execute(t, stageReal(t, s)); got != "served\n" {
		t.Errorf("said %q", got)
	}
	if after := list(t, r.host()); len(after) != len(before) {
		t.Errorf("the install wrote into the host path: %v", after)
	}
}

func TestRealNodeFolderFindsItsModules(t *testing.T) {
	r := newRig(t)
	lock := `{"name":"a","version":"1.0.0","lockfileVersion":3,"requires":true,"packages":{"":{"name":"a","version":"1.0.0","dependencies":{"is-number":"7.0.0"}},` +
		`"node_modules/is-number":{"version":"7.0.0","resolved":"https://registry.npmjs.org/is-number/-/is-number-7.0.0.tgz"}}}`
	r.write(map[string]string{
		"host/package.json":      `{"name":"a","version":"1.0.0","type":"module","dependencies":{"is-number":"7.0.0"},"scripts":{"prepare":"exit 1"}}`,
		"host/package-lock.json": lock, "host/index.js": "import n from 'is-number'; console.log(n(5), process.cwd())",
	})
	l := stageReal(t, New(real(r.root), Server{Command: "node", Args: []string{"index.js"}, HostPath: r.host()}))
	if got, want := execute(t, l), "true "+l.Workspace+"\n"; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}

// program finds a program of this machine.
func program(t *testing.T, name string) string {
	t.Helper()
	file, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%v: the tests with real packages need it", err)
	}
	return file
}

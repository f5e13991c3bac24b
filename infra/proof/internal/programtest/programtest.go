// Package programtest holds code for tests that run real programs. It finds programs, installs each
// pinned version once, and starts endpoints, which end with the test and leave nothing behind.
package programtest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// installLimit bounds one installation from a package registry.
const installLimit = 5 * time.Minute

// Root returns the folder of the repository, the one with .tools and bin.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for from := dir; ; dir = filepath.Dir(dir) {
		// Look for this file and not for go.mod, because test servers are modules below
		// the root.
		if _, err := os.Stat(filepath.Join(dir, "template.yaml")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatalf("no folder above %s has a template.yaml", from)
		}
	}
}

// Tool returns the path of a program that must be on the machine. The argument help says how to
// install it.
func Tool(t testing.TB, name, help string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%v; %s", err, help)
	}
	return path
}

// Run runs a command in a folder and returns its stdout. A limit of 0 means five minutes.
func Run(t testing.TB, dir, help string, limit time.Duration, name string, args ...string) []byte {
	t.Helper()
	if limit == 0 {
		limit = installLimit
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.WaitDelay, cmd.Stderr = dir, 5*time.Second, &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v; %s\n%s%s", cmd, err, help, out, stderr.Bytes())
	}
	return out
}

// installing is held during an installation, so that two tests do not install into the same folder.
var installing sync.Mutex

// Installed returns the folder .tools/<name>-<digest of key>. The first call fills it by the
// function install, and then marks the folder as complete, so that an interrupted installation is
// repeated.
func Installed(t testing.TB, name string, key []byte, install func(dir string)) string {
	t.Helper()
	installing.Lock()
	defer installing.Unlock()
	sum := sha256.Sum256(key)
	dir := filepath.Join(Root(t), ".tools", name+"-"+hex.EncodeToString(sum[:6]))
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600) // other programs of tests install too
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	stamp := filepath.Join(dir, ".installed")
	if _, err := os.Stat(stamp); err == nil {
		return dir
	}
	t.Logf("installing into %s, once", dir)
	Empty(t, dir)
	install(dir)
	Write(t, stamp, nil)
	return dir
}

// NodeModules installs the packages that from/package-lock.json pins and returns the folder with
// node_modules. The argument key has everything else that the installation depends on.
func NodeModules(t testing.TB, name, from string, key []byte) string {
	t.Helper()
	npm := Tool(t, "npm", NodeHelp)
	lock := filepath.Join(from, "package-lock.json")
	return Installed(t, name, append(Read(t, lock), key...), func(dir string) {
		Copy(t, filepath.Join(from, "package.json"), filepath.Join(dir, "package.json"))
		Copy(t, lock, filepath.Join(dir, "package-lock.json"))
		Run(t, dir, "is a package registry within reach?", 0, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	})
}

// Python installs a file of requirements into an environment of its own and returns its interpreter.
func Python(t testing.TB, name, requirements string) string {
	t.Helper()
	python := Tool(t, "python3", PythonHelp)
	key := append(Read(t, requirements), Run(t, ".", PythonHelp, 0, python, "--version")...)
	own := func(dir string) string { return filepath.Join(dir, "bin", "python") }
	return own(Installed(t, name, key, func(dir string) {
		Run(t, ".", PythonHelp, 0, python, "-m", "venv", dir)
		Run(t, ".", "is a package index within reach?", 0, own(dir),
			"-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "-r", requirements)
	}))
}

// These texts say what to do when a program is missing.
const (
	NodeHelp   = "node and npm are needed: install Node.js 20 or newer from https://nodejs.org or your system's packages"
	PythonHelp = "python3 with venv is needed: install Python 3.11 or newer (on Debian and Ubuntu also python3-venv)"
	GoHelp     = "go is needed: https://go.dev/dl"
)

// Build builds the Go package pkg, a path relative to dir, as .tools/<name>.
func Build(t testing.TB, name, dir, pkg string) string {
	t.Helper()
	binary := filepath.Join(Root(t), ".tools", name)
	Run(t, dir, "does the module build?", 0, Tool(t, "go", GoHelp), "build", "-o", binary, pkg)
	return binary
}

// Hosted has the addresses of a hosted server.
type Hosted struct {
	Name      string `json:"name"`
	URL       string `json:"url"`        // for Streamable HTTP
	SocketURL string `json:"socket_url"` // for WebSocket
}

// Host starts a Dormouse with free ports, an empty data folder, and the further flags. The argument
// servers has the entries of its servers file. Host returns the addresses of the servers by name.
func Host(t testing.TB, servers map[string]any, flags ...string) map[string]Hosted {
	t.Helper()
	return HostWith(t, servers, nil, flags...)
}

// HostWith is Host with settings: the section x-dormouse of the servers file.
func HostWith(t testing.TB, servers, settings map[string]any, flags ...string) map[string]Hosted {
	t.Helper()
	return Program{}.Host(t, servers, settings, flags...)
}

// Program is a dormouse program, and environment variables for it. Without a Path it is the one that
// make build makes.
type Program struct {
	Path string
	Env  []string
}

// Own builds an author's program, which is a dormouse with servers in Go. The path pkg is relative to
// dir.
func Own(t testing.TB, name, dir, pkg string) Program {
	t.Helper()
	return Program{Path: Build(t, filepath.Join(name, "dormouse"), dir, pkg)}
}

// OnEmulator returns the program that imitates AWS, and runs each Lambda function as a program. If p has
// servers in Go, so have the functions.
func (p Program) OnEmulator(t testing.TB) Program {
	t.Helper()
	on := Program{Path: filepath.Join(Root(t), "bin", "emulator", "dormouse")}
	if p.Path == "" {
		return on
	}
	options, err := json.Marshal(map[string]any{"Own": p.Path})
	if err != nil {
		t.Fatal(err)
	}
	on.Env = []string{"DORMOUSE_EMULATOR=" + string(options)}
	return on
}

// Host is [HostWith] for the program p.
func (p Program) Host(t testing.TB, servers, settings map[string]any, flags ...string) map[string]Hosted {
	t.Helper()
	binary := cmp.Or(p.Path, filepath.Join(Root(t), "bin", "dormouse"))
	if _, err := os.Stat(binary); err != nil {
		t.Fatalf("%v; run make build first", err)
	}
	document := map[string]any{"mcpServers": servers}
	if settings != nil {
		document["x-dormouse"] = settings
	}
	file, err := json.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "servers.json")
	Write(t, path, file)
	command := []string{binary, "run", "--listen", "127.0.0.1:0", "--sockets", "127.0.0.1:0", "--json", "--data", t.TempDir(), "--servers", path}
	started := Start(t, p.Env, append(command, flags...)...)
	hosted := map[string]Hosted{}
	for range servers {
		var h Hosted
		line := started.Ready(t)
		if err := json.Unmarshal(line, &h); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		hosted[h.Name] = h
	}
	return hosted
}

// OnlyFile returns the only file that matches a pattern. The argument help says what to do if there
// is none.
func OnlyFile(t testing.TB, pattern, help string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s fits %q, want one file (%v); %s", pattern, found, err, help)
	}
	return found[0]
}

// Empty makes an empty folder, or empties an existing one.
func Empty(t testing.TB, dir string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

// Read returns the content of a file.
func Read(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Write writes a file, or fails the test.
func Write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// Copy copies a file, or fails the test.
func Copy(t testing.TB, from, to string) {
	t.Helper()
	Write(t, to, Read(t, from))
}

//go:build clients

package clients

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// installLimit bounds one installation from a package registry.
const installLimit = 5 * time.Minute

const (
	nodeHelp   = "node and npm are needed: install Node.js 20 or newer from https://nodejs.org or your system's packages"
	pythonHelp = "python3 with venv is needed: install Python 3.11 or newer (on Debian and Ubuntu also python3-venv)"
)

// prepareTypeScript installs the SDK that name pins and puts the program beside it, with what it needs
// of this SDK: Node looks for packages beside the script.
func prepareTypeScript(t *testing.T, name, transport string) []string {
	dir := nodeModules(t, name)
	copyFile(t, filepath.Join(name, "sdk.mjs"), filepath.Join(dir, "sdk.mjs"))
	copyFile(t, filepath.Join("ts", "client.mjs"), filepath.Join(dir, "client.mjs"))
	node := []string{tool(t, "node", nodeHelp)}
	if transport == webSocket && nodeMajor(t, node[0]) < 22 {
		node = append(node, "--experimental-websocket", "--no-warnings")
	}
	return append(node, filepath.Join(dir, "client.mjs"))
}

// nodeMajor reads "v20.20.2".
func nodeMajor(t *testing.T, node string) int {
	t.Helper()
	version := string(output(t, node, "--version"))
	major, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	n, err := strconv.Atoi(major)
	if err != nil {
		t.Fatalf("node calls its version %q", version)
	}
	return n
}

// prepareTypeScriptPolls installs the SDK that name pins and puts the program beside it, with what
// it needs of this SDK.
func prepareTypeScriptPolls(t *testing.T, name string) []string {
	t.Helper()
	dir := nodeModules(t, name)
	copyFile(t, filepath.Join(name, "sdk.mjs"), filepath.Join(dir, "sdk.mjs"))
	copyFile(t, filepath.Join("ts", "polls.mjs"), filepath.Join(dir, "polls.mjs"))
	return []string{tool(t, "node", nodeHelp), filepath.Join(dir, "polls.mjs")}
}

func preparePython(t *testing.T, requirements, program string) []string {
	t.Helper()
	python := tool(t, "python3", pythonHelp)
	requirements = filepath.Join("py", requirements)
	key := append(readFile(t, requirements), output(t, python, "--version")...)
	dir := installed(t, filepath.Base(requirements), key, func(dir string) {
		runIn(t, ".", pythonHelp, python, "-m", "venv", dir)
		runIn(t, ".", "is a package index within reach?", venvPython(dir),
			"-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "-r", requirements)
	})
	return []string{venvPython(dir), filepath.Join("py", program)}
}

func prepareGo(t *testing.T) []string {
	binary := filepath.Join(repoRoot(t), ".tools", "clients", "gosdk") // up to date, it is not built again
	runIn(t, ".", "does the module build?", tool(t, "go", "go is needed: https://go.dev/dl"), "build", "-o", binary, "./gosdk")
	return []string{binary}
}

// everything returns the script of the pinned reference server.
func everything(t *testing.T) string {
	t.Helper()
	return filepath.Join(nodeModules(t, "everything"),
		"node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js")
}

// nodeModules installs what name/package-lock.json pins and returns the folder that holds
// node_modules.
func nodeModules(t *testing.T, name string) string {
	t.Helper()
	npm, node := tool(t, "npm", nodeHelp), tool(t, "node", nodeHelp)
	key := append(readFile(t, filepath.Join(name, "package-lock.json")), output(t, node, "--version")...)
	return installed(t, name, key, func(dir string) {
		for _, file := range []string{"package.json", "package-lock.json"} {
			copyFile(t, filepath.Join(name, file), filepath.Join(dir, file))
		}
		runIn(t, dir, "is a package registry within reach?", npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	})
}

// installed returns a folder of .tools/clients made for exactly this key. The stamp is written
// last, so that an installation that was cut short is done again.
func installed(t *testing.T, name string, key []byte, install func(dir string)) string {
	t.Helper()
	sum := sha256.Sum256(key)
	dir := filepath.Join(repoRoot(t), ".tools", "clients", name+"-"+hex.EncodeToString(sum[:6]))
	stamp := filepath.Join(dir, ".installed")
	if _, err := os.Stat(stamp); err == nil {
		return dir
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Logf("installing into %s, once", dir)
	install(dir)
	if err := os.WriteFile(stamp, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func venvPython(dir string) string { return filepath.Join(dir, "bin", "python") }

func repoRoot(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func tool(t *testing.T, name, help string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%v; %s", err, help)
	}
	return path
}

func runIn(t *testing.T, dir, help, name string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), installLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.WaitDelay = dir, 5*time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v; %s\n%s", cmd, err, help, out)
	}
}

func output(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).Output()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return out
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	if err := os.WriteFile(to, readFile(t, from), 0o644); err != nil {
		t.Fatal(err)
	}
}

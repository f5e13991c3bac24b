//go:build conformance

package conformance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

const (
	// installLimit bounds one installation from a package registry.
	installLimit = 5 * time.Minute
	// suiteLimit bounds one run of the suite, which bounds each scenario to 30 s itself.
	suiteLimit = 10 * time.Minute
	// everythingServer is the package of go-sdk's server for the suite.
	everythingServer = "github.com/modelcontextprotocol/go-sdk/conformance/everything-server"
)

// suite is the installed program.
type suite struct {
	node, script string
}

// installSuite installs what suite/package-lock.json pins, Node.js included: the suite needs a
// newer one than Dormouse's other tests.
func installSuite(t *testing.T) suite {
	t.Helper()
	lock := readFile(t, filepath.Join("suite", "package-lock.json"))
	sum := sha256.Sum256(lock)
	dir := filepath.Join(toolsDir(t), "suite-"+hex.EncodeToString(sum[:6]))
	stamp := filepath.Join(dir, ".installed") // written last: an installation that was cut short is done again
	if _, err := os.Stat(stamp); err != nil {
		t.Logf("installing into %s, once", dir)
		emptyDir(t, dir)
		writeFile(t, filepath.Join(dir, "package.json"), readFile(t, filepath.Join("suite", "package.json")))
		writeFile(t, filepath.Join(dir, "package-lock.json"), lock)
		run(t, dir, installLimit, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
		writeFile(t, stamp, nil)
	}
	return suite{
		node:   onlyMatch(t, filepath.Join(dir, "node_modules", "node-*", "bin", "node")),
		script: filepath.Join(dir, "node_modules", "@modelcontextprotocol", "conformance", "dist", "index.js"),
	}
}

// buildServer builds a package of the module servers/<module>.
func buildServer(t *testing.T, module, pkg, name string) string {
	t.Helper()
	binary := filepath.Join(toolsDir(t), "server-"+name) // up to date, it is not built again
	run(t, filepath.Join("servers", module), installLimit, "go", "build", "-o", binary, pkg)
	return binary
}

func (s suite) requirements(t *testing.T, revision string) requirements {
	t.Helper()
	listing := run(t, ".", suiteLimit, s.node, s.script, "list", "--server", "--requirements", revision)
	want, err := parseRequirements(string(listing))
	if err != nil {
		t.Fatal(err)
	}
	return want
}

// run runs the suite with the arguments that select the scenarios and returns what came of them.
// Results and output stay in .tools/conformance/results/<lane>, to be looked at. The exit code says
// less than the results, so it is not asked.
func (s suite) run(t *testing.T, lane, url string, want requirements, selection ...string) []scenario {
	t.Helper()
	dir := filepath.Join(toolsDir(t), "results", lane)
	emptyDir(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), suiteLimit)
	defer cancel()
	arguments := append([]string{s.script, "server", "--url", url, "--output-dir", filepath.Join(dir, "checks")}, selection...)
	cmd := exec.CommandContext(ctx, s.node, arguments...)
	cmd.WaitDelay = 5 * time.Second
	output, err := cmd.CombinedOutput()
	writeFile(t, filepath.Join(dir, "output.txt"), output)
	if exit := (*exec.ExitError)(nil); ctx.Err() != nil || (err != nil && !errors.As(err, &exit)) {
		t.Fatalf("%s: %v, %v\n%s", cmd, err, ctx.Err(), output)
	}
	results, err := readResults(filepath.Join(dir, "checks"), want)
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, output)
	}
	return results
}

func repoRoot(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func toolsDir(t *testing.T) string {
	t.Helper()
	return filepath.Join(repoRoot(t), ".tools", "conformance")
}

func onlyMatch(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s fits %d files, want one: is there a Node.js for this system in suite/package.json? (%v)", pattern, len(found), err)
	}
	return found[0]
}

func run(t *testing.T, dir string, limit time.Duration, name string, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.WaitDelay, cmd.Stderr = dir, 5*time.Second, &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", cmd, err, out, stderr.Bytes())
	}
	return out
}

func emptyDir(t *testing.T, dir string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

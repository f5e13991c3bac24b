//go:build conformance

package conformance

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

const (
	// suiteLimit bounds one run of the suite, which bounds each scenario to 30 s itself.
	suiteLimit = 10 * time.Minute
	// everythingServer is the package of go-sdk's server for the suite.
	everythingServer = "github.com/modelcontextprotocol/go-sdk/conformance/everything-server"
)

// suite is the installed program.
type suite struct {
	node, script string
}

// installSuite installs the packages that suite/package-lock.json pins, including Node.js:
// the suite needs a newer one than Dormouse's other tests.
func installSuite(t *testing.T) suite {
	t.Helper()
	dir := programtest.NodeModules(t, filepath.Join("conformance", "suite"), "suite", nil)
	return suite{
		node:   programtest.OnlyFile(t, filepath.Join(dir, "node_modules", "node-*", "bin", "node"), "is there a Node.js for this system in suite/package.json?"),
		script: filepath.Join(dir, "node_modules", "@modelcontextprotocol", "conformance", "dist", "index.js"),
	}
}

// buildServer builds a package of the module servers/<module>.
func buildServer(t *testing.T, module, pkg, name string) string {
	t.Helper()
	return programtest.Build(t, filepath.Join("conformance", "server-"+name), filepath.Join("servers", module), pkg)
}

func (s suite) requirements(t *testing.T, revision string) requirements {
	t.Helper()
	listing := programtest.Run(t, ".", "can the suite run at all?", suiteLimit, s.node, s.script, "list", "--server", "--requirements", revision)
	want, err := parseRequirements(string(listing))
	commontest.OK(t, err)
	return want
}

// run runs the suite with the arguments that select the scenarios and returns the results.
// Results and output stay in .tools/conformance/results/<lane> for people. The exit code
// says less than the results, so run ignores it.
func (s suite) run(t *testing.T, lane, url string, want requirements, selection ...string) []scenario {
	t.Helper()
	dir := filepath.Join(toolsDir(t), "results", lane)
	programtest.Empty(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), suiteLimit)
	defer cancel()
	arguments := append([]string{s.script, "server", "--url", url, "--output-dir", filepath.Join(dir, "checks")}, selection...)
	cmd := exec.CommandContext(ctx, s.node, arguments...)
	cmd.WaitDelay = 5 * time.Second
	output, err := cmd.CombinedOutput()
	programtest.Write(t, filepath.Join(dir, "output.txt"), output)
	if exit := (*exec.ExitError)(nil); ctx.Err() != nil || (err != nil && !errors.As(err, &exit)) {
		t.Fatalf("%s: %v, %v\n%s", cmd, err, ctx.Err(), output)
	}
	results, err := readResults(filepath.Join(dir, "checks"), want)
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, output)
	}
	return results
}

func toolsDir(t *testing.T) string {
	t.Helper()
	return filepath.Join(programtest.Root(t), ".tools", "conformance")
}

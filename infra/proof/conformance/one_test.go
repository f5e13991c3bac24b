//go:build conformance

package conformance

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// TestOfficialSuitePassesAtOneAddress runs the suite against /mcp, which serves the suite's
// server together with others. Its tools have no prefix, because the suite calls them by name
// and no other server has tools of these names.
func TestOfficialSuitePassesAtOneAddress(t *testing.T) {
	suite, binaries := installSuite(t), buildServers(t)
	self, err := os.Executable()
	commontest.OK(t, err)
	var rows []row
	for _, l := range []lane{{server: "legacy", revision: revision2025}, {server: "extended", revision: revision2026}} {
		want := suite.requirements(t, l.revision)
		for _, others := range []int{1, 19} {
			t.Run(fmt.Sprintf("%s/%d servers", l.revision, 1+others), func(t *testing.T) {
				servers := map[string]server{l.server: {Command: binaries[l.server]}}
				for i := range others {
					servers[fmt.Sprintf("other-%d", i)] = server{Command: self, Args: []string{slowServer}}
				}
				url := strings.Replace(startDormouse(t, servers)[l.server], "/"+l.server+"/mcp", "/mcp?names=plain", 1)
				as := l
				as.server = fmt.Sprintf("one-of-%d", 1+others)
				rows = append(rows, as.run(t, suite, want, url, "")...)
			})
		}
	}
	t.Logf("lanes:\n%s", table(rows))
}

// The headers of a call repeat arguments. At a group, too, its server's list says which, although
// no client has listed the tools at the server's own address.
func TestHeaderScenarioPassesAtAGroup(t *testing.T) {
	const name = "http-custom-header-server-validation"
	suite := installSuite(t)
	self, err := os.Executable()
	commontest.OK(t, err)
	urls := startDormouse(t, map[string]server{
		"extended": {Command: buildServer(t, "legacy", "./testdata/extended", "extended")}, "other": {Command: self, Args: []string{slowServer}},
	})
	url := plainGroup("extended", urls["extended"])
	discover(t, url)
	results := suite.run(t, "group-headers", url, requirements{scored: []string{name}}, "--scenario", name, "--spec-version", revision2026, "--force")
	for _, problem := range problemsOf(results) {
		t.Error(problem)
	}
	commontest.EqualIn(t, "checks succeeded, want 10", 10, results[0].count(success))
	t.Logf("lanes:\n%s", table([]row{{"group, " + name, results}}))
}

//go:build conformance

package conformance

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestOfficialSuitePassesAtOneAddress runs the suite against /mcp, which serves the suite's
// server together with others. Its tools have no prefix, because the suite calls them by name
// and no other server has tools of these names.
func TestOfficialSuitePassesAtOneAddress(t *testing.T) {
	suite, binaries := installSuite(t), buildServers(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
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

//go:build clients && matrix

package clients

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The table of releases stands between these lines of the page.
const releasesBegin, releasesEnd = "<!-- releases: written by make matrix -->\n", "<!-- /releases -->\n"

// TestReleases runs all releases through all checks, and writes the table of them.
func TestReleases(t *testing.T) {
	rows, checks := releases(), releaseChecks()
	failed := playReleases(t, rows, checks)
	var table strings.Builder
	table.WriteString("| SDK | release | of | transport |")
	for _, check := range checks {
		fmt.Fprintf(&table, " %s |", check.title)
	}
	table.WriteString("\n|" + strings.Repeat("---|", 4+len(checks)) + "\n")
	for i, r := range rows {
		fmt.Fprintf(&table, "| %s | %s | %s | %s |", r.sdk, r.version, r.published, r.transportTitle())
		for _, check := range checks {
			cell := "yes"
			if _, ok := failed[i][check.title]; ok {
				cell = "no"
			}
			fmt.Fprintf(&table, " %s |", cell)
		}
		table.WriteString("\n")
	}
	t.Logf("\n%s", &table)
	if os.Getenv(pageVariable) != "" && !t.Failed() {
		writeTable(t, releasesBegin, releasesEnd, table.String())
	}
}

func (r release) transportTitle() string {
	return map[string]string{streamable: "HTTP", sse: "HTTP+SSE", sseBelow: "HTTP+SSE, base with a path"}[r.transport]
}

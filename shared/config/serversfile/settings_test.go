package serversfile_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// The tables of the page are those that the reader reads by.
func TestThePageHasTheSettings(t *testing.T) {
	const name = "../../../docs/servers-file.md"
	text, err := os.ReadFile(name)
	commontest.OK(t, err)
	page := string(text)
	for heading, table := range serversfile.SettingTables() {
		before, after, ok := strings.Cut(page, "\n"+heading+"\n\n")
		there, rest, end := strings.Cut(after, "\n\n")
		if !ok || !end {
			t.Fatalf("%s has no table below %s", name, heading)
		}
		if *update {
			page = before + "\n" + heading + "\n\n" + table + "\n" + rest
			continue
		}
		commontest.SameIn(t, heading+": go test ./shared/config/serversfile -run ThePage -update", table, there+"\n")
	}
	if *update {
		commontest.OK(t, os.WriteFile(name, []byte(page), 0o600))
	}
}

// A server whose file spells a default out is the server of a silent file.
func TestADefaultOfThePageIsThatOfASilentFile(t *testing.T) {
	silent := one(t, server(`"command": "a", "x-dormouse": {"box": {}}`), nil)
	tables := serversfile.SettingTables()
	spelled := 0
	for heading, form := range map[string]string{
		"## Settings of a server: `x-dormouse`":    `"command": "a", "x-dormouse": {"box": {}, %q: %s}`,
		"## The box of a server: `x-dormouse.box`": `"command": "a", "x-dormouse": {"box": {%q: %s}}`,
	} {
		for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| .* \\| `([^`|]+)` \\| ").FindAllStringSubmatch(tables[heading], -1) {
			spelled++
			s := one(t, server(fmt.Sprintf(form, row[1], row[2])), nil)
			commontest.SameIn(t, row[1], silent.Marshal(), s.Marshal())
		}
	}
	if spelled < 10 {
		t.Errorf("%d defaults are values of their keys", spelled)
	}
}

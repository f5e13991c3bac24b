package shared_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// errorPage explains the codes and phases of errors.
const errorPage = "docs/errors.md"

var codeInTable = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")

func TestEveryCodeHasItsRow(t *testing.T) {
	want, got := map[string]bool{}, map[string]bool{}
	for file, constant := range map[string]string{
		"core/storage/errors.go":         `\w+ Code`,
		"operate/api/api.go":             `const codeNotHere`,
		"core/wire/errors.go":            `Code\w+ Code`,
		"endpoint/transport/access.go":   `const codeForbidden`,
		"box/errors.go":                  `Phase\w+ +Phase`,
		"backend/relayserver/failure.go": `phase\w+`,
	} {
		codes := regexp.MustCompile(`(?m)^\s*`+constant+` += "?(-?\w+)"?`).FindAllStringSubmatch(fileOf(t, file), -1)
		if codes == nil {
			t.Errorf("%s has no constants %s", file, constant)
		}
		for _, code := range codes {
			want[code[1]] = true
		}
	}
	page := pages(t, "..")[errorPage]
	for _, head := range []string{"| code | status |", "| code | who", "| phase |"} {
		_, table, _ := strings.Cut(page, "\n"+head)
		table, _, _ = strings.Cut(table, "\n\n")
		for _, row := range codeInTable.FindAllStringSubmatch(table, -1) {
			got[row[1]] = true
		}
	}
	commontest.SameIn(t, "the codes of the program, and those with a row in "+errorPage, want, got)
}

var (
	verbInText  = regexp.MustCompile(`%[-+# 0]*[\d.*]*[a-zA-Z]`)
	quotedInRow = regexp.MustCompile("(?m)^\\| (?:\"([^\"|]+)\"|`([^`|]+)`) \\|")
)

// Pages quote errors as the first cells of their tables, with … for what the program fills in.
func TestErrorsThatPagesQuoteAreSaid(t *testing.T) {
	source := strings.ReplaceAll(strings.ReplaceAll(sources(t), `\"`, `"`), "%q", `"…"`)
	source = strings.ReplaceAll(verbInText.ReplaceAllString(source, "…"), "%%", "%")
	quotes := 0
	for page, text := range pages(t, "..") {
		for table := range strings.SplitSeq(text, "\n\n") {
			errors := page == errorPage && strings.HasPrefix(table, "| it says |")
			for _, quote := range quotedInRow.FindAllStringSubmatch(table, -1) {
				if quote[1] == "" && !errors {
					continue
				}
				quotes++
				for part := range strings.SplitSeq(quote[1]+quote[2], "…") {
					if !strings.Contains(source, part) {
						t.Errorf("%s: no error says %q any more", page, part)
					}
				}
			}
		}
	}
	if quotes < 10 {
		t.Errorf("the pages quote %d errors; is their form another?", quotes)
	}
}

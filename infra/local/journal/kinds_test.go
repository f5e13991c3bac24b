package journal_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// A program that reads the output of dormouse run --json finds each kind of event on a page.
func TestThePageOfOperationsHasEveryKindOfEvent(t *testing.T) {
	source, err := os.ReadFile("journal.go")
	commontest.OK(t, err)
	page, err := os.ReadFile("../../../docs/operations.md")
	commontest.OK(t, err)
	// The page has boxes in words. The others are for counts, spans and --verbose.
	elsewhere := []string{journal.BoxWake, journal.BoxSleep, journal.BoxCrash, journal.RefusedAgain, journal.Request, journal.Deliver, journal.Stored, journal.Frame}
	kinds := regexp.MustCompile(`(?m)^\t[A-Z]\w+ += "([a-z.]+)"`).FindAllStringSubmatch(string(source), -1)
	if len(kinds) < len(elsewhere) {
		t.Fatalf("journal.go has the kinds %q", kinds)
	}
	for _, kind := range kinds {
		if !slices.Contains(elsewhere, kind[1]) && !strings.Contains(string(page), "`"+kind[1]+"`") {
			t.Errorf("docs/operations.md does not name the event %s", kind[1])
		}
	}
}

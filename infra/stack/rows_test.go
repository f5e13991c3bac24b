package stack_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// Each fault that a review found has a test that exists, a page or a reason.
func TestWhatAReviewFoundIsHeld(t *testing.T) {
	text, err := os.ReadFile(root("docs", "aws", "checked.md"))
	if err != nil {
		t.Fatal(err)
	}
	listed, err := exec.CommandContext(t.Context(), "git", "-C", root(), "grep", "-hoE", "--untracked", "^func Test[A-Za-z0-9_]+", "--", "*_test.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, name := range strings.Fields(string(listed)) {
		there[name] = true
	}
	rows := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if regexp.MustCompile(`^\| (\d+[a-f]?|walls|costs|lacks|other region) \|`).MatchString(line) {
			if rows++; len(cells) != 3 || len(strings.TrimSpace(cells[2])) < 10 {
				t.Errorf("the row has no test, page or reason: %s", line)
			}
		}
		for _, name := range regexp.MustCompile("`(Test[A-Za-z0-9_]+)`").FindAllStringSubmatch(line, -1) {
			if !there[name[1]] {
				t.Errorf("there is no %s", name[1])
			}
		}
	}
	if rows != 27 {
		t.Errorf("there are %d rows, want those of 18 findings, the last in six parts, and four more", rows)
	}
}

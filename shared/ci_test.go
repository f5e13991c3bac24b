package shared_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func fileOf(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	commontest.OK(t, err)
	return string(text)
}

// README.md names make test. The run and the workflow take it, and the linters, from one list.
func TestTheWorkflowHasTheStepsOfTheRun(t *testing.T) {
	for _, step := range []string{"make test RACE=yes", "make lint", "make vet-darwin"} {
		commontest.Contains(t, ".ci/steps", "\n"+step+"\n", fileOf(t, "../.ci/steps"))
	}
	for _, file := range []string{"../.ci/run", "../.github/workflows/ci.yml"} {
		commontest.Contains(t, file, "grep '^make ' .ci/steps", fileOf(t, file))
	}
}

// A step that fails stops no other. Its output comes last, and the run fails.
func TestStepsThatFailComeLastAndFailTheRun(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "../.ci/beside", "1")
	cmd.Stdin = strings.NewReader("ls /not-there\necho all is well\n")
	said, err := cmd.Output()
	commontest.EqualIn(t, "the run succeeds", false, err == nil)
	_, after, passed := strings.Cut(string(said), "=== echo all is well: passed in ")
	if _, why, failed := strings.Cut(after, "=== FAILED: ls /not-there"); !passed || !failed || !strings.Contains(why, "ls: ") {
		t.Errorf("the run says\n%s", said)
	}
}

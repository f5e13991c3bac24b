package shared_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

func fileOf(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// recipe returns the lines of a target of the Makefile.
func recipe(t *testing.T, target string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^` + target + `:.*\n((?:\t.*\n)+)`).FindStringSubmatch(fileOf(t, "../Makefile"))
	if found == nil {
		t.Fatalf("the Makefile has no target %s", target)
	}
	return found[1]
}

// The CI builds for macOS, and README.md tells users of Windows to use WSL2.
func TestCIVetsAndBuildsForMacOS(t *testing.T) {
	if !strings.Contains(fileOf(t, "../.ci/run"), "\nstep make vet-darwin\n") {
		t.Error(".ci/run does not run make vet-darwin")
	}
	made := recipe(t, "vet-darwin")
	for _, part := range []string{"GOOS=darwin", "amd64 arm64", "go vet ./infra/... ./shared/...", "go build -o /dev/null ./infra/dormouse"} {
		if !strings.Contains(made, part) {
			t.Errorf("make vet-darwin lacks %q:\n%s", part, made)
		}
	}
	if !strings.Contains(fileOf(t, "../README.md"), "on Windows use WSL2") {
		t.Error("README.md does not say what to do on Windows")
	}
}

// The linter takes minutes to build the first time. A newcomer must not wait for it to see
// whether the tests pass.
func TestUnitTestsBeginBeforeTheLinterIsBuilt(t *testing.T) {
	for target, first := range map[string]string{"check": "test-short", "test": "test-unit"} {
		made := recipe(t, target)
		tests, lint := strings.Index(made, first), strings.Index(made, "lint")
		if tests < 0 || lint < tests {
			t.Errorf("make %s does not run %s before lint:\n%s", target, first, made)
		}
	}
}

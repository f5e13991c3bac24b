package shared_test

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func fileOf(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	commontest.OK(t, err)
	return string(text)
}

func makefiles(t *testing.T) string {
	t.Helper()
	all := fileOf(t, "../Makefile")
	for _, name := range strings.Fields(regexp.MustCompile(`(?m)^include (.*)$`).FindStringSubmatch(all)[1]) {
		all += "\n" + fileOf(t, "../"+name)
	}
	return all
}

// recipe returns the lines of a target of the Makefile.
func recipe(t *testing.T, target string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^` + target + `:.*\n((?:\t.*\n)+)`).FindStringSubmatch(makefiles(t))
	if found == nil {
		t.Fatalf("the Makefile has no target %s", target)
	}
	return found[1]
}

// The CI builds for macOS, and README.md tells users of Windows to use WSL2.
func TestCIVetsAndBuildsForMacOS(t *testing.T) {
	if !slices.Contains(stepsOf(t), "make vet-darwin") {
		t.Error(".ci/steps has no make vet-darwin")
	}
	made := recipe(t, "vet-darwin")
	for _, part := range []string{"GOOS=darwin", "go vet ./infra/... ./shared/...", "go build -o /dev/null ./infra/cmd/dormouse"} {
		if !strings.Contains(made, part) {
			t.Errorf("make vet-darwin lacks %q:\n%s", part, made)
		}
	}
	if !strings.Contains(fileOf(t, "../README.md"), "on Windows use WSL2") {
		t.Error("README.md does not say what to do on Windows")
	}
}

// stepsOf returns the commands of .ci/run, of whatever the machine has.
func stepsOf(t *testing.T) []string {
	t.Helper()
	return regexp.MustCompile(`(?m)^make .*$`).FindAllString(fileOf(t, "../.ci/steps"), -1)
}

// README.md names make test; .ci/run runs it and the linters, and the workflow has the same
// list.
func TestTheWorkflowHasTheStepsOfTheRun(t *testing.T) {
	steps := stepsOf(t)
	for _, step := range []string{"make test RACE=yes", "make lint"} {
		if !slices.Contains(steps, step) {
			t.Errorf(".ci/run does not run %s, but %q", step, steps)
		}
	}
	for _, file := range []string{"../.ci/run", "../.github/workflows/ci.yml"} {
		if !strings.Contains(fileOf(t, file), "grep '^make ' .ci/steps") {
			t.Errorf("%s does not take its steps from .ci/steps", file)
		}
	}
}

// beside runs .ci/beside with these commands, and returns it with what it prints.
func beside(t *testing.T, commands ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "../.ci/beside", "1")
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	said, err := cmd.StdoutPipe()
	commontest.OK(t, err)
	commontest.OK(t, cmd.Start())
	return cmd, bufio.NewScanner(said)
}

// A step that fails stops no other. Its output comes last, and the run fails.
func TestStepsThatFailComeLastAndFailTheRun(t *testing.T) {
	var said []string
	cmd, lines := beside(t, "ls /not-there", "echo all is well")
	for lines.Scan() {
		said = append(said, lines.Text())
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the run succeeds")
	}
	index := func(part string) int {
		return slices.IndexFunc(said, func(line string) bool { return strings.HasPrefix(line, part) })
	}
	passed, failed, why := index("=== echo all is well: passed in "), index("=== FAILED: ls /not-there"), index("ls: ")
	if passed < 0 || failed < passed || why < failed || !strings.HasPrefix(said[len(said)-2], "=== ls /not-there: failed in ") || said[len(said)-1] != said[why] {
		t.Errorf("the run says\n%s", strings.Join(said, "\n"))
	}
}

// Ctrl-C ends a run, whose steps end with it.
func TestAnInterruptedRunLeavesNothingBehind(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	commontest.OK(t, syscall.Mkfifo(pipe, 0o600))
	cmd, lines := beside(t, "cat "+pipe, "echo never")
	end, err := os.OpenFile(pipe, os.O_WRONLY, 0) // once the step reads
	commontest.OK(t, err)
	defer func() { _ = end.Close() }()
	commontest.OK(t, cmd.Process.Signal(os.Interrupt))
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	if err := cmd.Wait(); err == nil || last != "=== echo never: not begun" {
		t.Errorf("the run ends with %v and says %q at last", err, last)
	}
	if _, err := end.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the step still reads: %v", err)
	}
}

// The linter takes minutes to build the first time. A newcomer must not wait for it to see
// whether the tests pass.
func TestUnitTestsBeginBeforeTheLinterIsBuilt(t *testing.T) {
	if made := recipe(t, "check"); !regexp.MustCompile(`test-short.* lint`).MatchString(made) {
		t.Errorf("make check does not run test-short before lint:\n%s", made)
	}
	if made := recipe(t, "test"); strings.Contains(made, "'make lint'") || !strings.Contains(made, "make test-unit") {
		t.Errorf("make test runs lint, or no unit tests:\n%s", made)
	}
}

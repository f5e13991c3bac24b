//go:build e2e

package dormouse_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// operate runs a command of dormouse and returns its whole output and its exit code.
func operate(t *testing.T, args ...string) (printed string, code int) {
	t.Helper()
	return operateWith(t, "", nil, args...)
}

// operateWith is as operate, with a standard input and more variables.
func operateWith(t *testing.T, stdin string, env []string, args ...string) (printed string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(programs, "dormouse"), args...)
	cmd.Stdin, cmd.Env = strings.NewReader(stdin), append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		code = exit.ExitCode()
	}
	return string(out), code
}

func TestE2ELogsFollowsThroughAStop(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	m.start()
	follow := exec.CommandContext(t.Context(), filepath.Join(programs, "dormouse"), "logs", "one", "-f", "--data", m.data) //nolint:gosec // the built program
	out := newJournal()
	follow.Stdout = out
	commontest.OK(t, follow.Start())
	c := m.session("one")
	c.text("count", "")
	started := func(n int) func() bool {
		return func() bool {
			lines, _ := out.lines()
			return strings.Count(strings.Join(lines, "\n"), " started") >= n
		}
	}
	m.eventually(patience, "the start of the process is shown", started(1))
	operate(t, "stop", "one", "--data", m.data)
	c.text("count", "")
	m.eventually(patience, "the start of the next process is shown", started(2))
	commontest.OK(t, follow.Process.Signal(os.Interrupt))
	commontest.CheckIn(t, "it ended with", follow.Wait())
}

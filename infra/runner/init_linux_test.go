package runner

import (
	"context"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// TestMain makes the test binary the first process that the tests ask for. That process
// becomes a subreaper, because the first process of a container adopts orphans too. For
// TestEscapeRoom the test binary is also the runner of a hostile program.
func TestMain(m *testing.M) {
	sandbox.Enter(os.Args)
	if job, ok := os.LookupEnv(escapeRole); ok {
		escapeRunner(job)
		os.Exit(0)
	}
	if os.Getenv(invitedRole) != "" {
		hostileServer()
		os.Exit(0)
	}
	if os.Getenv(runtimeAPI) != "" {
		Main()
		os.Exit(0)
	}
	script, ok := os.LookupEnv("RUNNER_TEST_SUPERVISE")
	if !ok {
		os.Exit(m.Run())
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		os.Exit(100)
	}
	code, err := supervise("/bin/sh", []string{"sh", "-c", script}, []string{"PATH=" + os.Getenv("PATH")})
	if err != nil {
		os.Exit(101)
	}
	os.Exit(code)
}

// first runs a script under supervise in another process.
func first(t *testing.T, script string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), "RUNNER_TEST_SUPERVISE="+script)
	return cmd
}

func TestFirstProcessExitsAsTheRunnerDoes(t *testing.T) {
	for script, want := range map[string]int{
		"exit 3":     3,
		"kill -9 $$": 128 + 9,
		// The inner shell leaves a child behind. When the child ends, it stays a zombie until
		// the first process has reaped it.
		`orphan=$(sh -c 'sleep 0.1 >/dev/null & echo $!')
		n=0
		while [ -e /proc/$orphan ]; do
			n=$((n+1)); [ $n -gt 200 ] && exit 9
			sleep 0.05
		done
		exit 4`: 4,
	} {
		cmd := first(t, script)
		if _ = cmd.Run(); cmd.ProcessState.ExitCode() != want {
			t.Errorf("%s: %s", script, cmd.ProcessState)
		}
	}
}

func TestFirstProcessPassesSignalsOn(t *testing.T) {
	cmd := first(t, `trap 'exit 5' TERM; echo $$; while :; do sleep 0.05; done`)
	out, err := cmd.StdoutPipe()
	commontest.OK(t, err)
	commontest.OK(t, cmd.Start())
	line := make([]byte, 16)
	n, err := out.Read(line) // the trap is set
	commontest.OK(t, err)
	if pid, err := strconv.Atoi(strings.TrimSpace(string(line[:n]))); err != nil || pid == cmd.Process.Pid {
		t.Fatalf("the script says %q", line[:n])
	}
	commontest.OK(t, cmd.Process.Signal(syscall.SIGTERM))
	_, _ = io.Copy(io.Discard, out)
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 5 {
		t.Error(cmd.ProcessState)
	}
}

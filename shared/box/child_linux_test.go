package box

import (
	"bufio"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func TestProcessDiesWithARunnerThatIsKilled(t *testing.T) {
	t.Parallel()
	runner := exec.CommandContext(t.Context(), self(t))
	runner.Env = []string{behaviour + "=runner"}
	out, err := runner.StdoutPipe()
	commontest.OK(t, err)
	commontest.OK(t, runner.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	commontest.OK(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || !commontest.Alive(pid) {
		t.Fatalf("the process %d is not there (%v)", pid, err)
	}
	commontest.OK(t, runner.Process.Kill())
	_ = runner.Wait() // says that it was killed
	commontest.Eventually(t, "the process is gone", func() bool { return !commontest.Alive(pid) })
}

// A server may end after an answer, just when the next request comes. What it has certainly
// not read was not executed.
func TestRequestThatAProcessHasNotReadIsNotLost(t *testing.T) {
	r := newRig(t, "normal")
	r.result(r.call("1", "last", "0"))
	commontest.Equal(t, `{"echo":2}`, string(r.result(r.call("2", "echo", "2"))))
	r.result(r.call("3", "last", "3"))
	commontest.EqualIn(t, "code", wire.CodeInternal, r.fails(r.call("4", "echo", "4"), "", `server "fake": exited with code 3; the call was not executed, send it again`).Code)
	commontest.EqualIn(t, "code", wire.CodeOutcomeUnknown, r.failure(r.call("5", "exit", "0")).Code)
}

func TestRequestIsSentAgainOnce(t *testing.T) {
	r := newRig(t, "reads no call")
	commontest.EqualIn(t, "code", wire.CodeInternal, r.fails(r.call("1", "echo", "1"), "", "exited with code 0; the call was not executed, send it again").Code)
	for range 2 {
		r.state(t, Started)
	}
}

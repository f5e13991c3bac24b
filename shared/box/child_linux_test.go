package box

import (
	"bufio"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/commontest"
)

func TestProcessDiesWithARunnerThatIsKilled(t *testing.T) {
	t.Parallel()
	runner := exec.CommandContext(t.Context(), self(t))
	runner.Env = []string{behaviour + "=runner"}
	out, err := runner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := runner.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || !commontest.Alive(pid) {
		t.Fatalf("the process %d is not there (%v)", pid, err)
	}
	if err := runner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = runner.Wait() // says that it was killed
	commontest.Eventually(t, "the process is gone", func() bool { return !commontest.Alive(pid) })
}

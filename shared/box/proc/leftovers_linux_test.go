package proc

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// L-24: EndMarked finds what a killed runner has left, and nothing else.
func TestMarkedProcessesAreFoundWhereverTheyWent(t *testing.T) {
	t.Parallel()
	mark := filepath.Join(t.TempDir(), "box")
	begin := func(mark string) int {
		// The process has forked twice and has a session of its own. Its parent is gone.
		sh := exec.CommandContext(t.Context(), "/bin/sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!")
		sh.Env = []string{"PATH=" + os.Getenv("PATH"), MarkEnv + "=" + mark}
		out, err := sh.StdoutPipe()
		commontest.OK(t, err)
		commontest.OK(t, sh.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		commontest.OK(t, err)
		commontest.OK(t, sh.Wait())
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		commontest.OK(t, err)
		return pid
	}
	// EndMarked may return a moment before a process has ended, when it has lost its
	// environment.
	ended := func(pid int) {
		t.Helper()
		commontest.Eventually(t, "a marked process has ended", func() bool { return !commontest.Alive(pid) })
	}
	one, two, other, longer := begin(mark+"/1"), begin(mark+"/2"), begin(mark+"er/1"), begin(mark+"/11")
	commontest.OK(t, EndMarked(mark+"/1"))
	ended(one)
	if !commontest.Alive(two) || !commontest.Alive(longer) {
		t.Errorf("of one process: alive %v %v", commontest.Alive(two), commontest.Alive(longer))
	}
	commontest.OK(t, EndMarked(mark))
	ended(two)
	ended(longer)
	commontest.EqualIn(t, "the process of another box is alive", true, commontest.Alive(other))
	commontest.Check(t, EndMarked(mark+"er"))
	ended(other)
	commontest.Check(t, EndMarked(""))
}

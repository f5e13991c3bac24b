package proc

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// adopt has this program adopt two orphans, of which one has a session of its own. They end
// when release is called.
func adopt(t *testing.T) (orphans []string, release func()) {
	t.Helper()
	commontest.OK(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c",
		`for how in "" setsid; do $how sh -c 'echo $$; exec 1>&-; read line <&3' 3<&0 & done`)
	in, err := cmd.StdinPipe()
	commontest.OK(t, err)
	out, err := cmd.StdoutPipe()
	commontest.OK(t, err)
	commontest.OK(t, cmd.Start())
	for lines := bufio.NewScanner(out); lines.Scan(); {
		orphans = append(orphans, lines.Text())
	}
	if len(orphans) != 2 {
		t.Fatalf("orphans %v", orphans)
	}
	// Wait would close the pipe.
	_, err = cmd.Process.Wait()
	commontest.OK(t, err)
	return orphans, func() { _ = in.Close() }
}

func exists(pid string) bool {
	_, err := os.Stat("/proc/" + pid)
	return err == nil
}

func TestOrphansAreReapedWhenTheyEnd(t *testing.T) {
	Reap()
	orphans, release := adopt(t)
	for _, pid := range orphans {
		if !exists(pid) {
			t.Fatalf("orphan %s has gone", pid)
		}
	}
	release()
	for _, pid := range orphans {
		commontest.Eventually(t, "orphan "+pid+" is reaped", func() bool { return !exists(pid) })
	}
}

// The exit status of a process that package os has started belongs to who waits for it,
// however long that takes.
func TestReapTakesNoExitStatusOfOthers(t *testing.T) {
	Reap()
	var late []*exec.Cmd
	for n := range 20 {
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", fmt.Sprintf("exit %d", n))
		if n%2 == 1 {
			cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
		}
		commontest.OK(t, cmd.Start())
		late = append(late, cmd)
	}
	for _, cmd := range late {
		commontest.Eventually(t, "it has ended", func() bool { return isOwnZombie(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid)) })
	}
	orphans, release := adopt(t)
	release()
	for _, pid := range orphans {
		commontest.Eventually(t, "orphan "+pid+" is reaped", func() bool { return !exists(pid) })
	}
	reapOrphans()
	for n, cmd := range late {
		if err := cmd.Wait(); n == 0 && err != nil || n > 0 && (err == nil || !strings.HasSuffix(err.Error(), fmt.Sprintf("exit status %d", n))) {
			t.Errorf("the process that exits with %d: %v", n, err)
		}
	}
}

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

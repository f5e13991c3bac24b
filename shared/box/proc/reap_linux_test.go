package proc

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
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
	if _, err := cmd.Process.Wait(); err != nil {
		t.Fatal(err)
	}
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

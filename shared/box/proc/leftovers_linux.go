package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// markedTime limits how long EndMarked waits for killed processes to end; they need
// moments.
const markedTime = 5 * time.Second

// EndMarked kills every process that carries mark, or mark followed by a slash and more,
// in any group or session. It returns when all are gone, or with an error if some are
// left after five seconds. It sees the processes of its own user, or all if it is root.
// It does not find a process that has cleared its environment.
func EndMarked(mark string) error {
	if mark == "" {
		return nil
	}
	for pause, until := time.Millisecond, time.Now().Add(markedTime); ; pause = min(2*pause, 50*time.Millisecond) {
		left, err := marked(mark)
		if err != nil {
			return fmt.Errorf("look for processes that were left behind: %w", err)
		}
		if len(left) == 0 {
			return nil
		}
		for _, pid := range left {
			killMarked(pid, mark)
		}
		if time.Now().After(until) {
			return fmt.Errorf("%d processes that were left behind do not end, one is pid %d", len(left), left[0])
		}
		time.Sleep(pause)
	}
}

// marked lists the pids that carry the mark. A zombie has no environment any more, so it
// is not listed.
func marked(mark string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && pid != os.Getpid() && carries(pid, mark) {
			found = append(found, pid)
		}
	}
	return found, nil
}

func carries(pid int, mark string) bool {
	env, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	if err != nil {
		return false // gone, or not ours
	}
	for variable := range bytes.SplitSeq(env, []byte{0}) {
		if value, ok := bytes.CutPrefix(variable, []byte(MarkEnv+"=")); ok {
			rest, ok := bytes.CutPrefix(value, []byte(mark))
			return ok && (len(rest) == 0 || rest[0] == '/')
		}
	}
	return false
}

// killMarked kills the process with a pid if the process has the mark. Another process may
// have the pid by now: a pidfd stays with one process, so killMarked opens it first.
func killMarked(pid int, mark string) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ENOSYS) { // before linux 5.3
		_ = unix.Kill(pid, unix.SIGKILL)
		return
	}
	if err != nil {
		return
	}
	if carries(pid, mark) {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // an error means that it is gone
	}
	_ = unix.Close(fd)
}

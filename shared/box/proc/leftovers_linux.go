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

// markedTime is how long marked processes may take to die of SIGKILL, which takes
// moments.
const markedTime = 5 * time.Second

// EndMarked kills every process that carries a mark, or one that begins with it and
// a slash, whatever group or session it has moved to, and returns when all are gone.
// It finds those it may look at: of the same user, or all if it is root. A process
// that has cleared its environment is not found.
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

// marked lists them. One that has ended has no environment any more, also if nobody
// has waited for it.
func marked(mark string) ([]int, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	names, err := proc.Readdirnames(-1)
	_ = proc.Close() // was only read
	if err != nil {
		return nil, err
	}
	var found []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
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

// killMarked looks again with the process in hand: the number may be somebody
// else's by now.
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
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // gone is as good
	}
	_ = unix.Close(fd)
}

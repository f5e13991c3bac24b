package proc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// markedTime limits how long EndMarked waits for killed processes to end, which normally takes
// moments.
const markedTime = 5 * time.Second

// EndMarked kills every process whose [MarkEnv] is mark, or mark followed by a slash and more
// text, in any process group or session. It returns when all have ended, or with an error if some
// are left after five seconds. EndMarked sees the processes of its own user, or of all users if
// the caller is root. It does not find a process that has cleared its environment.
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

// marked returns the pids of the processes with the mark, without zombies, which have no
// environment any more.
func marked(mark string) ([]int, error) {
	all, err := folders()
	if err != nil {
		return nil, err
	}
	var found []int
	for pid, own := range seen.marks(all, time.Now()) {
		if under(own, mark) && carries(pid, mark) {
			found = append(found, pid)
		}
	}
	return found, nil
}

// under reports whether value equals mark, or begins with mark and a slash.
func under(value, mark string) bool {
	rest, ok := strings.CutPrefix(value, mark)
	return ok && (rest == "" || rest[0] == '/')
}

func carries(pid int, mark string) bool { return under(markOf(pid), mark) }

// markOf returns the mark of a process. The mark is "" if the process has none, has ended, or may
// not be read.
func markOf(pid int) string {
	env, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	if err != nil {
		return ""
	}
	for variable := range bytes.SplitSeq(env, []byte{0}) {
		if value, ok := bytes.CutPrefix(variable, []byte(MarkEnv+"=")); ok {
			return string(value)
		}
	}
	return ""
}

// folders returns the inode of the folder in /proc of each process except this one, by pid.
func folders() (inodes map[int]uint64, err error) {
	f, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	inodes = map[int]uint64{}
	for buf := make([]byte, 16<<10); ; {
		n, err := unix.Getdents(int(f.Fd()), buf)
		if err != nil || n == 0 {
			return inodes, err
		}
		for at := buf[:n]; len(at) > direntName; at = at[binary.NativeEndian.Uint16(at[16:]):] {
			name, _, _ := bytes.Cut(at[direntName:], []byte{0})
			if pid, err := strconv.Atoi(string(name)); err == nil && pid != os.Getpid() {
				inodes[pid] = binary.NativeEndian.Uint64(at)
			}
		}
	}
}

// direntName is the offset of the name in a directory entry of getdents64.
const direntName = 19

// Until settled has passed since a process was first seen, each look reads its mark again: a process
// that was just forked may get another environment when it executes its program.
const settled = time.Second

// seen caches the marks of this machine's processes.
var seen table

// table has the last sighting of each process, by pid.
type table struct {
	mu sync.Mutex
	of map[int]sighting
}

type sighting struct {
	inode uint64
	first time.Time
	mark  string
}

// marks returns the marks of processes, by pid. The argument has the inodes of their folders in
// /proc, by pid.
func (t *table) marks(inodes map[int]uint64, now time.Time) map[int]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, all := t.of, make(map[int]string, len(inodes))
	t.of = make(map[int]sighting, len(inodes))
	for pid, inode := range inodes {
		s := before[pid]
		if s.inode != inode {
			s = sighting{inode: inode, first: now}
		}
		if now.Sub(s.first) < settled {
			s.mark = markOf(pid)
		}
		t.of[pid], all[pid] = s, s.mark
	}
	return all
}

// killMarked kills the process with this pid if it still has the mark: another process may have got
// the pid meanwhile. killMarked first opens a pidfd, which always refers to the same process.
func killMarked(pid int, mark string) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ENOSYS) { // Linux before 5.3 has no pidfd, so the mark is not checked
		_ = unix.Kill(pid, unix.SIGKILL)
		return
	}
	if err != nil {
		return
	}
	if carries(pid, mark) {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // an error means that the process has ended
	}
	_ = unix.Close(fd)
}

package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// After a child has ended, Reap waits for reapPause. In that time the code that started the child
// normally reaps it. If an unreaped child is there after reapLooks pauses, Reap searches all
// processes of the machine for orphans.
const (
	reapPause = 20 * time.Millisecond
	reapLooks = 5
)

// Reap makes this program reap the orphans that it has adopted, as soon as they end. Only the
// first call has an effect. Reap never reaps a process that package os has started: it recognizes
// the process by its pidfd. Linux before 5.4 has no such pidfds, and Reap does nothing there.
func Reap() { reaping.Do(reap) }

var reaping sync.Once

func reap() {
	if self, err := os.FindProcess(os.Getpid()); err != nil || self.WithHandle(func(uintptr) {}) != nil {
		return
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	go func() {
		for {
			looks := 0
			for ; looks < reapLooks && haveEnded(); looks++ {
				time.Sleep(reapPause)
			}
			if looks == reapLooks {
				reapOrphans()
			}
			<-ended
			time.Sleep(reapPause)
		}
	}()
}

// haveEnded reports whether a child has ended and was not reaped yet.
func haveEnded() bool {
	var some unix.Siginfo
	err := unix.Waitid(unix.P_ALL, 0, &some, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && some.Signo != 0
}

func reapOrphans() {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is well formed
	fds := map[int]int{}                           // pidfds by pid
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	for _, path := range stats {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil || !isOwnZombie(path) {
			continue
		}
		// The pid may have gone to another process before the pidfd was opened, so look again.
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			if fds[pid] = fd; !isOwnZombie(path) {
				delete(fds, pid)
				_ = unix.Close(fd)
			}
		}
	}
	held, err := pidfds()
	if err != nil {
		return
	}
	for pid, fd := range fds {
		if held[pid] == 1 { // the only pidfd of the process is fd, so package os has none
			_ = unix.Waitid(unix.P_PIDFD, fd, nil, unix.WEXITED|unix.WNOHANG, nil)
		}
	}
}

// isOwnZombie reports whether a file /proc/<pid>/stat describes a child of this program that has
// ended and was not reaped.
func isOwnZombie(stat string) bool {
	text, err := os.ReadFile(stat)
	if err != nil {
		return false // the process has ended
	}
	// The process name in parentheses may contain anything. After the name come the state and the
	// parent.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	return len(fields) > 1 && fields[0][0] == 'Z' && string(fields[1]) == strconv.Itoa(os.Getpid())
}

// pidfds returns how many pidfds this program has of each process, by pid.
func pidfds() (map[int]int, error) {
	const folder = "/proc/self/fdinfo"
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("list open files: %w", err)
	}
	count := map[int]int{}
	for _, e := range entries {
		info, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // the file was closed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("read what is open: %w", err)
		}
		if _, rest, found := bytes.Cut(info, []byte("\nPid:\t")); found {
			line, _, _ := bytes.Cut(rest, []byte("\n"))
			if pid, err := strconv.Atoi(string(line)); err == nil {
				count[pid]++
			}
		}
	}
	return count, nil
}

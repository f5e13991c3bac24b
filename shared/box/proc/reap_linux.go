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

// After a child has ended, Reap waits for reapPause. By then, whoever waits for the child has
// reaped it, unless it is an orphan. Only if after reapLooks such pauses there still is a child
// that was not reaped, Reap reads all processes of the machine.
const (
	reapPause = 20 * time.Millisecond
	reapLooks = 5
)

// Reap reaps the orphans that this program has adopted, as soon as they end, for the life of
// the program. Only its first call counts. It never reaps a process that package os has
// started: such a process has a pidfd in this program. Before Linux 5.4 there are none, and
// Reap does nothing.
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

// haveEnded reports whether there is a child that has ended and was not reaped.
func haveEnded() bool {
	var some unix.Siginfo
	err := unix.Waitid(unix.P_ALL, 0, &some, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && some.Signo != 0
}

// reapOrphans reaps the orphans that have ended. An error leaves them for the next time.
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
		// With the pidfd no other process can be meant. Before it was opened, the pid may have
		// gone to another process, so look again.
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
		if held[pid] == 1 { // only fd: package os has no pidfd of it
			_ = unix.Waitid(unix.P_PIDFD, fd, nil, unix.WEXITED|unix.WNOHANG, nil)
		}
	}
}

// isOwnZombie reports whether a file of /proc/<pid>/stat is that of a child of this program
// that has ended and was not reaped.
func isOwnZombie(stat string) bool {
	text, err := os.ReadFile(stat)
	if err != nil {
		return false // the process is gone
	}
	// The name in parentheses may hold anything; the state and the parent follow it.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	return len(fields) > 1 && fields[0][0] == 'Z' && string(fields[1]) == strconv.Itoa(os.Getpid())
}

// pidfds counts the pidfds of this program for each process.
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
			continue // closed meanwhile
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

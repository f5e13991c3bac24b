package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// attributes puts the process into a group of its own. If the runner dies without having
// stopped the process, the kernel kills it. The kernel sends that signal when the thread
// that started the process dies. The Go runtime keeps its threads, so only the end of the
// runner sends it.
func attributes(apart bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: !apart, Setsid: apart, Pdeathsig: syscall.SIGKILL}
}

// oomKills returns how many processes the kernel has killed for lack of memory since boot,
// on the whole machine.
func oomKills() int {
	stat, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(stat, []byte("\noom_kill "))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	n, _ := strconv.Atoi(string(line)) // kernels before 4.13 do not count
	return n
}

// reap waits for the process, kills the rest of its group and then reaps it. As long as
// the process is a zombie its pid is taken, so the signal cannot reach another group.
func (c *Child) reap() {
	for {
		err := unix.Waitid(unix.P_PID, c.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.killGroup()
	// Its error repeats the exit status.
	_ = c.cmd.Wait()
	c.reaped = true
}

// endWait is how long unread waits for the last reader of a pipe. A process that exits closes
// its pipes within moments.
const endWait = 50 * time.Millisecond

// unread returns how many bytes are in a pipe that has no reader any more.
func unread(w *os.File) (n int, ok bool) {
	conn, err := w.SyscallConn()
	if err != nil {
		return 0, false
	}
	failed := conn.Control(func(fd uintptr) {
		// The kernel reports POLLERR when the last reader is gone.
		end := []unix.PollFd{{Fd: int32(fd)}} //nolint:gosec // a file descriptor is small
		if _, err := unix.Poll(end, int(endWait.Milliseconds())); err != nil || end[0].Revents&unix.POLLERR == 0 {
			return
		}
		n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		ok = err == nil
	})
	return n, ok && failed == nil
}

// reread opens the read end of a pipe, of which this process has the write end only.
func reread(w *os.File) (take func() ([]byte, error), err error) {
	conn, err := w.SyscallConn()
	if err != nil {
		return nil, err
	}
	var r *os.File
	failed := conn.Control(func(fd uintptr) {
		r, err = os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDONLY|unix.O_NONBLOCK, 0)
	})
	if err = errors.Join(failed, err); err != nil {
		return nil, err
	}
	return func() ([]byte, error) {
		_ = w.Close()                                  // from now on, usually only the process holds the write end
		_ = r.SetReadDeadline(time.Now().Add(endWait)) // a program that inherited the write end may hold it
		all, err := io.ReadAll(r)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil
		}
		return all, errors.Join(err, r.Close())
	}, nil
}

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

// attributes puts the process into its own process group. If the runner dies, the kernel kills the
// process. Pdeathsig would also kill it at the end of the thread that started it, but the Go runtime
// keeps its threads.
func attributes(apart bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: !apart, Setsid: apart, Pdeathsig: syscall.SIGKILL}
}

// oomKills returns how many processes of the whole machine the kernel has killed for lack of
// memory since boot.
func oomKills() int {
	stat, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(stat, []byte("\noom_kill "))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	n, _ := strconv.Atoi(string(line)) // 0 on kernels before 4.13, which do not count
	return n
}

// reap waits for the process, kills the rest of its group, and then reaps the process. No other
// process can get the pid of an unreaped process, so the signal cannot reach another group.
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
	// The error only repeats the exit status.
	_ = c.cmd.Wait()
	c.reaped = true
}

// endWait is how long unread waits for the last reader of a pipe to close it.
const endWait = 50 * time.Millisecond

// unread returns how many bytes are in a pipe that no process can read any more.
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

// reread opens the read end of a pipe whose write end is w.
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
		_ = w.Close()                                  // now usually only the process has the write end open
		_ = r.SetReadDeadline(time.Now().Add(endWait)) // another program may have inherited the write end
		all, err := io.ReadAll(r)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil
		}
		return all, errors.Join(err, r.Close())
	}, nil
}

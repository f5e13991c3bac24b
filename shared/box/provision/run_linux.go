package provision

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes has the kernel kill the command when the runner dies without having
// stopped it.
func attributes() *syscall.SysProcAttr {
	a := group()
	a.Pdeathsig = syscall.SIGKILL
	return a
}

// sweep waits for a process to end and kills the rest of its group. It does not reap the
// process: while the process is a zombie, no other process can have its pid. So the signal
// cannot reach another group.
func sweep(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_ = unix.Kill(-pid, unix.SIGKILL) // an error means that it is gone
}

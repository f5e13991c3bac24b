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

// sweep waits for a process to end and kills what it has left in its group. It does
// not reap it: as long as it is a zombie its number is taken, so the group that is
// killed is no other.
func sweep(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_ = unix.Kill(-pid, unix.SIGKILL) // gone already is as good
}

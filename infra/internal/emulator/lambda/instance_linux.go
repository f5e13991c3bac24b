package lambda

import (
	"errors"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// functionAttr puts the process in a group of its own. The kernel kills it when the thread
// that starts it ends. So it also ends with this program.
func functionAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitEnd returns when the process has ended. It does not reap the process, so no other
// process can get its pid.
func awaitEnd(cmd *exec.Cmd) {
	for {
		err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

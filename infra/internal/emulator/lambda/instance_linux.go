package lambda

import "syscall"

// functionAttr puts a process in a process group of its own. The kernel kills the process when
// this program ends.
func functionAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

package lambda

import "syscall"

// functionAttr puts the process in a group of its own. It ends with this program.
func functionAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

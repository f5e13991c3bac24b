//go:build unix && !linux

package lambda

import "syscall"

// functionAttr puts a process in a process group of its own. If this program is killed, the
// process finds the Runtime API closed at its next request, and ends.
func functionAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

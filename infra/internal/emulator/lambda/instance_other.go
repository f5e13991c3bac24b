//go:build unix && !linux

package lambda

import (
	"os/exec"
	"syscall"
)

// functionAttr puts the process in a group of its own. If this program is killed,
// the process finds the Runtime API closed at its next request and ends.
func functionAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// awaitEnd waits for the process and reaps it: there is no portable way to wait without
// reaping.
func awaitEnd(cmd *exec.Cmd) { _ = cmd.Wait() }

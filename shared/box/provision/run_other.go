//go:build !linux

package provision

import "syscall"

func attributes() *syscall.SysProcAttr { return group() }

// sweep does nothing. This system reaps a process when it waits for it, and then another
// process may have the pid.
func sweep(int) {}

//go:build !linux

package provision

import "syscall"

func attributes() *syscall.SysProcAttr { return group() }

// sweep does nothing. On this system to wait for a process is to reap it, and another
// process may then have its pid.
func sweep(int) {}

//go:build !linux

package provision

import "syscall"

func attributes() *syscall.SysProcAttr { return group() }

// sweep does nothing. On this system a process can only be waited for by reaping it, and
// then another process may have its pid.
func sweep(int) {}

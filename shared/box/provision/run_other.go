//go:build !linux

package provision

import "syscall"

func attributes() *syscall.SysProcAttr { return group() }

// sweep leaves what a command has left behind: there is no way here to wait for a
// process without reaping it, after which its number may be another's.
func sweep(int) {}

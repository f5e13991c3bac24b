//go:build !linux

package proc

import (
	"errors"
	"os"
	"syscall"
)

// attributes puts the process into its own process group. Outside Linux a process outlives a
// runner that is killed, until it notices that its stdin is closed.
func attributes(apart bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: !apart, Setsid: apart}
}

// oomKills returns 0, because only Linux counts these kills.
func oomKills() int { return 0 }

// reap waits for the process, and then kills the rest of its group.
func (c *Child) reap() {
	// The error only repeats the exit status.
	_ = c.cmd.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reaped = true
	c.killGroup()
}

func unread(*os.File) (n int, ok bool) { return 0, false }

func reread(*os.File) (func() ([]byte, error), error) { return nil, errors.ErrUnsupported }

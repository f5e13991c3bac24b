//go:build !linux

package proc

import (
	"syscall"
)

// attributes puts the process into a group of its own. Without Linux it outlives a
// runner that is killed, until it finds its stdin closed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// oomKills is not counted.
func oomKills() int { return 0 }

// reap waits for the process, and kills what is left of its group right after.
func (c *Child) reap() {
	// Its error is the exit status once more.
	_ = c.cmd.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reaped = true
	c.killGroup()
}

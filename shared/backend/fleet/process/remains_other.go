//go:build !linux

package process

import (
	"errors"
	"fmt"
	"syscall"
)

// BecomeSubreaper does nothing: this system has no subreapers.
func BecomeSubreaper() error { return nil }

func runnerAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// zombie has fields on Linux only.
type zombie struct{}

// reap waits for the end of the runner and kills what is left of its process group.
func (p *Pool) reap(t *task) error {
	// ProcessState has the exit status, so the error says nothing new.
	_ = t.cmd.Wait()
	p.runnerGone(t)
	err := syscall.Kill(-t.status.PID, syscall.SIGKILL)
	// Some systems answer EPERM for a group of zombies.
	if err != nil && !errors.Is(err, syscall.ESRCH) && !errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("kill process group %d: %w", t.status.PID, err)
	}
	return nil
}

//go:build !linux

package sandbox

import (
	"io/fs"
	"os/exec"
)

// Probe returns the zero Support, because nothing is enforced outside Linux.
func Probe() Support { return Support{} }

// Enter does nothing, because there is no shim outside Linux.
func Enter([]string) {}

// Start makes the folders and starts the program without confinement. [Sandbox.Lacks] lists every
// guard that the policy asks for.
func (s *Sandbox) Start(cmd *exec.Cmd) error {
	if err := s.makeFolders(); err != nil {
		return err
	}
	return cmd.Start()
}

// End removes Temp. It kills no processes: without a user or cgroup of their own they cannot be
// found.
func (s *Sandbox) End() error { return s.removeTemp() }

// CgroupsOf returns "", because only Linux has cgroups.
func CgroupsOf(int) string { return "" }

type cgroup string

func (cgroup) exceeded() bool { return false }

func owned(fs.FileInfo) (user uint32, names uint64) { return 0, 1 }

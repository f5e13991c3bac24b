//go:build !linux

package sandbox

import (
	"io/fs"
	"os/exec"
)

// Probe returns the zero Support: outside Linux nothing is enforced.
func Probe() Support { return Support{} }

// Enter does nothing: outside Linux there is no shim.
func Enter([]string) {}

// Start makes the folders and starts the program without confinement. Lacks lists every
// guard that its policy asks for.
func (s *Sandbox) Start(cmd *exec.Cmd) error {
	if err := s.makeFolders(); err != nil {
		return err
	}
	return cmd.Start()
}

// End removes Temp. It ends no processes: they have no user of their own by which End
// could find them.
func (s *Sandbox) End() error { return s.removeTemp() }

// CgroupsOf returns "": cgroups are Linux's.
func CgroupsOf(int) string { return "" }

type cgroup string

func (cgroup) exceeded() bool { return false }

func owned(fs.FileInfo) (user uint32, names uint64) { return 0, 1 }

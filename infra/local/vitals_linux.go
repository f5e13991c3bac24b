package local

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/box/guard"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// systemVitals returns what the system says about its memory, its load, and the disk of a folder.
func systemVitals(folder string) (v api.Vitals) {
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscan(string(text), &v.Load) // on an error Load stays 0
	}
	v.MemoryFree, v.Memory, _ = guard.Left() // 0 if unknown
	var disk unix.Statfs_t
	if unix.Statfs(folder, &disk) == nil {
		// The sizes leave out the blocks that only root may use, as df does.
		v.DiskFree = int64(disk.Bavail) * disk.Bsize                   //nolint:gosec // no disk is so large that this overflows
		v.Disk = v.DiskFree + int64(disk.Blocks-disk.Bfree)*disk.Bsize //nolint:gosec // no disk is so large that this overflows
	}
	return v
}

package local

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// inSessions lists the processes of the sessions that these processes lead; see setsid(2).
func inSessions(leaders []int) []api.Member {
	list := []api.Member{}
	if len(leaders) == 0 {
		return list
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return list
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if sid, err := unix.Getsid(pid); err != nil || !slices.Contains(leaders, sid) {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue
		}
		group, _ := unix.Getpgid(pid) // the process may have ended
		list = append(list, api.Member{
			PID: pid, Command: commandOf(pid), Started: info.ModTime().UTC().Truncate(time.Second), Memory: residentBytes(pid), Group: group,
		})
	}
	return list
}

// residentBytes returns how many bytes of a process are in RAM, or 0 if it has ended.
func residentBytes(pid int) int64 {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "statm"))
	if err != nil {
		return 0
	}
	var size, resident int64
	_, _ = fmt.Sscan(string(text), &size, &resident) // Linux writes numbers
	return resident * int64(os.Getpagesize())
}

// commandOf returns the base name of a process's program. If the first argument is an absolute
// path, its base name follows: it is usually a script. Other arguments may be secrets, so they are
// left out.
func commandOf(pid int) string {
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return "?"
	}
	args := bytes.Split(bytes.TrimRight(line, "\x00"), []byte{0})
	command := filepath.Base(string(args[0]))
	if len(args) > 1 && filepath.IsAbs(string(args[1])) {
		command += " " + filepath.Base(string(args[1]))
	}
	return command
}

package local

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// members lists the processes of a runner's box. A runner leads a session (see
// setsid) of its own, and the processes it starts stay in it. The list leaves out
// processes that end while it is made.
func members(runner int) []BoxMember {
	list := []BoxMember{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return list
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == runner {
			continue
		}
		if sid, err := unix.Getsid(pid); err != nil || sid != runner {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue
		}
		list = append(list, BoxMember{PID: pid, Command: commandOf(pid), Started: info.ModTime().UTC().Truncate(time.Second)})
	}
	return list
}

// commandOf returns the program's name and, if it is an absolute path, the first
// argument, both without folders. That identifies the process, and shows no secret in
// its arguments.
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

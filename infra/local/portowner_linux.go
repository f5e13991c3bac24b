package local

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// portOwner names the program that listens at an address, if this user may see that program's
// processes.
func portOwner(address string) string {
	const unseen = "another program"
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return unseen
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return unseen
	}
	sockets := listening(uint16(n))
	if len(sockets) == 0 {
		return unseen
	}
	open, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return unseen
	}
	for _, file := range open {
		to, err := os.Readlink(file)
		if err != nil || !sockets[to] {
			continue
		}
		pid := strings.Split(file, "/")[2]
		line, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
		args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
		if err != nil || args[0] == "" {
			continue
		}
		name := filepath.Base(args[0])
		if name == "dormouse" && len(args) > 1 && args[1] == "run" {
			name = "another dormouse run"
		}
		return fmt.Sprintf("%s (pid %s)", name, pid)
	}
	return unseen
}

// listening returns the sockets that listen on a port, in the form in which /proc/PID/fd names
// them.
func listening(port uint16) map[string]bool {
	sockets := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			// The columns are: number, local address, remote address, state, …, inode.
			const listens = "0A"
			if f := strings.Fields(line); len(f) > 9 && f[3] == listens && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				sockets["socket:["+f[9]+"]"] = true
			}
		}
	}
	return sockets
}

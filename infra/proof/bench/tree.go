package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of CPU times in /proc on every Linux that Go supports.
const tick = 10 * time.Millisecond

// usage is the resources of a tree of processes at one moment.
type usage struct {
	CPU       time.Duration // user and system time, of living processes and of ended ones that were waited for
	Processes int           // number of processes, without the reaper
	RSS, PSS  int64         // bytes; PSS divides memory that several processes map
	Host      int64         // RSS without the hosted servers
}

// member is one process below a reaper.
type member struct {
	pid, parent int
	cpu         time.Duration // CPU time, including that of the children it has waited for
	own         time.Duration // CPU time without that of its children
	command     string
}

// treeCPU adds up the CPU time of a reaper and all processes below it, to within a tick
// for each living process. It also returns how many processes are below the reaper.
func treeCPU(root int) (time.Duration, int, error) {
	all, err := below(root)
	if err != nil {
		return 0, 0, err
	}
	var sum time.Duration
	for _, m := range all {
		sum += m.cpu
	}
	return sum, len(all) - 1, nil
}

// treePrograms returns the CPU time of living processes by program.
func treePrograms(root int) (map[string]time.Duration, error) {
	all, err := below(root)
	if err != nil {
		return nil, err
	}
	programs := map[string]time.Duration{}
	for _, m := range all {
		if m.pid != root {
			programs[m.command] += m.own
		}
	}
	return programs, nil
}

// treeUsage is like treeCPU, but also measures memory. It takes longer, because the kernel must read
// the pages of each process.
func treeUsage(root int) (usage, error) {
	all, err := below(root)
	if err != nil {
		return usage{}, err
	}
	var u usage
	for _, m := range all {
		u.CPU += m.cpu
		if m.pid == root {
			continue
		}
		u.Processes++
		rss, pss := memory(m.pid)
		u.RSS += rss
		if !hosted(m.command) {
			u.Host += rss
		}
		u.PSS += pss
	}
	return u, nil
}

func hosted(command string) bool { return command == "echo" }

// below lists the process root and its descendants.
func below(root int) ([]member, error) {
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	children := map[int][]member{}
	var all []member
	for _, folder := range folders {
		m, ok := process(folder)
		switch {
		case !ok:
		case m.pid == root:
			all = append(all, m)
		default:
			children[m.parent] = append(children[m.parent], m)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("process %d has ended", root)
	}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i].pid]...)
	}
	return all, nil
}

// process reads one stat file. ok is false if the process has ended meanwhile, or is a
// zombie: its parent will get its time, which would then count twice.
func process(folder string) (member, bool) {
	text, err := os.ReadFile(filepath.Join(folder, "stat"))
	if err != nil {
		return member{}, false
	}
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return member{}, false
	}
	fields := strings.Fields(string(text[end+1:]))
	const state, parent, utime, stime, cutime, cstime = 0, 1, 11, 12, 13, 14
	if len(fields) <= cstime {
		return member{}, false
	}
	m := member{command: string(text[open+1 : end])}
	if line, err := os.ReadFile(filepath.Join(folder, "cmdline")); err == nil && m.command == "dormouse" && bytes.Contains(line, []byte("\x00runner\x00")) {
		m.command = "runner"
	}
	m.pid, _ = strconv.Atoi(strings.TrimSpace(string(text[:open])))
	m.parent, _ = strconv.Atoi(fields[parent])
	for _, i := range []int{utime, stime, cutime, cstime} {
		n, _ := strconv.ParseInt(fields[i], 10, 64)
		if m.cpu += time.Duration(n) * tick; i == stime {
			m.own = m.cpu
		}
	}
	return m, fields[state] != "X"
}

// memory reads RSS and PSS of a process in bytes; 0 if it has ended.
func memory(pid int) (rss, pss int64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			continue
		}
		switch name {
		case "Rss":
			rss = n << 10
		case "Pss":
			pss = n << 10
		}
	}
	return rss, pss
}

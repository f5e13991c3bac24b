package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cpuGroup is the kernel's cpu group of a run: this program, the hosts and the servers. Their
// threads share the processors equally, whichever process has started them. Together they get
// nearly all of a machine that has other work.
type cpuGroup struct {
	folders []string // folders of the group: two if cgroups version 1 has cpu and cpuacct in separate folders, else one
	account string   // file with the CPU time of the group
	unit    time.Duration
}

// groupRoots returns the folders below which a group may be made: of cgroups version 1 with cpu and
// cpuacct mounted apart, of version 1 with both together, and of version 2.
func groupRoots() [][]string {
	const root = "/sys/fs/cgroup/"
	return [][]string{{root + "cpu", root + "cpuacct"}, {root + "cpu,cpuacct"}, {root}}
}

// joinGroup makes the group and moves this program into it. It needs root.
func joinGroup() (*cpuGroup, error) {
	name := fmt.Sprintf("dormouse-bench-%d", os.Getpid())
	for _, roots := range groupRoots() {
		if _, err := os.Stat(filepath.Join(roots[0], "cgroup.procs")); err != nil {
			continue
		}
		g := &cpuGroup{}
		for _, root := range roots {
			g.folders = append(g.folders, filepath.Join(root, name))
		}
		if err := g.join(); err != nil {
			return nil, errors.Join(err, g.leave())
		}
		return g, nil
	}
	return nil, errors.New("there is no cgroup for processors")
}

func (g *cpuGroup) join() error {
	share, account := "cpu.shares", "cpuacct.usage"
	most := []byte("262144")
	g.unit = time.Nanosecond
	for _, folder := range g.folders {
		if err := os.Mkdir(folder, 0o755); err != nil {
			return err
		}
	}
	last := g.folders[len(g.folders)-1]
	if _, err := os.Stat(filepath.Join(last, "cpu.weight")); err == nil {
		share, account, most, g.unit = "cpu.weight", "cpu.stat", []byte("10000"), time.Microsecond
	}
	g.account = filepath.Join(last, account)
	if err := os.WriteFile(filepath.Join(g.folders[0], share), most, 0o644); err != nil {
		return err
	}
	for _, folder := range g.folders {
		if err := move(folder); err != nil {
			return err
		}
	}
	_, err := g.used()
	return err
}

func move(folder string) error {
	return os.WriteFile(filepath.Join(folder, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0o644)
}

// leave moves this program back and removes the group, whose other processes must have ended.
func (g *cpuGroup) leave() error {
	var err error
	for _, folder := range g.folders {
		if _, missing := os.Stat(folder); missing != nil {
			continue
		}
		err = errors.Join(err, move(filepath.Dir(folder)), os.Remove(folder))
	}
	return err
}

// used returns the CPU time of all other processes of the group, also of ended ones. It leaves out
// the time of this program, in which the clients run.
func (g *cpuGroup) used() (time.Duration, error) {
	text, err := os.ReadFile(g.account)
	if err != nil {
		return 0, err
	}
	first, _, _ := bytes.Cut(text, []byte("\n"))
	fields := strings.Fields(string(first)) // "N", or "usage_usec N"
	if len(fields) == 0 {
		return 0, fmt.Errorf("%s is empty", g.account)
	}
	n, err := strconv.ParseInt(fields[len(fields)-1], 10, 64)
	if err != nil {
		return 0, err
	}
	var own unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &own); err != nil {
		return 0, err
	}
	return time.Duration(n)*g.unit - time.Duration(own.Utime.Nano()+own.Stime.Nano()), nil
}

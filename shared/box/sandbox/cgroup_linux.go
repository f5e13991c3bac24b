package sandbox

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// In a cgroup (version 2, see cgroups(7)) the kernel enforces limits of memory and processes at
// once, whereas [Sandbox.watch] looks only four times a second.

// cgroupOfRunner is the name of the cgroup into which the runner moves, because the kernel gives
// controllers only to children of a cgroup without processes.
const cgroupOfRunner = "dormouse"

// cgroupOfServer is the prefix of the names of the programs' cgroups, before the pid of the runner
// and a random text.
const cgroupOfServer = "server-"

// CgroupsOf returns the folder in which another process of this user may make cgroups; see
// [Support.Cgroups].
func CgroupsOf(pid int) string { return findCgroups(procFile(pid, "")) }

// findCgroups returns the folder in which a process may make cgroups for programs, or "". The
// argument proc is the process's folder in /proc.
func findCgroups(proc string) string {
	mounts, err := os.ReadFile(filepath.Join(proc, "mountinfo"))
	if err != nil {
		return ""
	}
	of, err := os.ReadFile(filepath.Join(proc, "cgroup"))
	if err != nil {
		return ""
	}
	_, own, _ := strings.Cut("\n"+string(of), "\n0::")
	own, _, _ = strings.Cut(own, "\n")
	for line := range strings.Lines(string(mounts)) {
		before, after, _ := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if len(fields) < 5 || !strings.HasPrefix(after, "cgroup2 ") {
			continue
		}
		below, err := filepath.Rel(fields[3], own)
		if err == nil && filepath.IsLocal(below) {
			return delegated(fields[4], filepath.Join(fields[4], below))
		}
	}
	return ""
}

// delegated returns own, the cgroup of a process. If a runner has made own, delegated returns its
// parent. delegated returns "" for a cgroup that the system has not delegated: that cgroup belongs
// to another program, such as systemd, and must not be changed.
func delegated(mount, own string) string {
	if filepath.Base(own) == cgroupOfRunner && own != mount {
		own = filepath.Dir(own)
	}
	var mark [1]byte
	left := own == mount // the root cgroup of the machine, or of a container, needs no delegation
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		n, err := unix.Getxattr(own, name, mark[:])
		left = left || err == nil && n == 1 && mark[0] == '1' // systemd's Delegate=yes
	}
	if !left || !lists(filepath.Join(own, "cgroup.controllers"), "memory", "pids") {
		return ""
	}
	for _, path := range []string{own, filepath.Join(own, "cgroup.procs"), filepath.Join(own, "cgroup.subtree_control")} {
		if unix.Access(path, unix.W_OK) != nil {
			return ""
		}
	}
	return own
}

// lists reports whether a file contains all these words.
func lists(path string, words ...string) bool {
	text, err := os.ReadFile(path)
	has := strings.Fields(string(text))
	return err == nil && !slices.ContainsFunc(words, func(w string) bool { return !slices.Contains(has, w) })
}

// cgroup is the path of a cgroup's folder, "" for no cgroup.
type cgroup string

// newCgroup makes the cgroup of a program in a folder that findCgroups has returned.
func newCgroup(in string, p Policy) (cgroup, error) {
	if err := enable(in); err != nil {
		return "", err
	}
	removeLeft(in)
	dir, err := os.MkdirTemp(in, cgroupOfServer+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return "", err
	}
	g := cgroup(dir)
	limits := [][2]string{{"memory.oom.group", "1"}}
	if p.Memory > 0 {
		limits = append(limits, [2]string{"memory.max", strconv.FormatInt(p.Memory, 10)})
	}
	if p.Processes > 0 {
		limits = append(limits, [2]string{"pids.max", strconv.Itoa(p.Processes)})
	}
	for _, l := range limits {
		if err = os.WriteFile(g.file(l[0]), []byte(l[1]), 0o600); err != nil {
			return "", errors.Join(err, os.Remove(dir))
		}
	}
	_ = os.WriteFile(g.file("memory.swap.max"), []byte("0"), 0o600) // fails on a kernel without swap
	return g, nil
}

// enable makes the kernel enforce limits on the children of a cgroup. enable first moves all
// processes of the cgroup to a child, as the kernel demands of every cgroup but the root of the
// machine.
func enable(in string) error {
	control := filepath.Join(in, "cgroup.subtree_control")
	if lists(control, "memory", "pids") {
		return nil
	}
	// The root cgroup of the machine has no file cgroup.type, and may keep its processes.
	if _, err := os.Stat(filepath.Join(in, "cgroup.type")); err == nil {
		child := filepath.Join(in, cgroupOfRunner)
		if err := os.Mkdir(child, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		for range 10 { // processes may start others meanwhile
			procs, err := os.ReadFile(filepath.Join(in, "cgroup.procs"))
			if err != nil || len(procs) == 0 {
				break
			}
			for _, pid := range bytes.Fields(procs) {
				err := os.WriteFile(filepath.Join(child, "cgroup.procs"), pid, 0o600)
				if err != nil && !errors.Is(err, syscall.ESRCH) {
					return err
				}
			}
		}
	}
	return os.WriteFile(control, []byte("+memory +pids"), 0o600)
}

// removeLeft kills the programs of runners that have ended, and removes their cgroups.
func removeLeft(in string) {
	all, _ := filepath.Glob(filepath.Join(in, cgroupOfServer+"*")) // the pattern is well formed
	for _, dir := range all {
		of, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), cgroupOfServer), "-")
		if pid, err := strconv.Atoi(of); err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			_ = cgroup(dir).end() // after an error, the next call of removeLeft tries again
		}
	}
}

func (g cgroup) file(name string) string { return filepath.Join(string(g), name) }

// join moves this process into the cgroup.
func (g cgroup) join() error {
	if g == "" {
		return nil
	}
	return os.WriteFile(g.file("cgroup.procs"), []byte("0"), 0o600)
}

// exceeded reports whether the kernel has killed processes of the cgroup because they used more
// memory than its limit.
func (g cgroup) exceeded() bool {
	events, _ := os.ReadFile(g.file("memory.events")) // there is none if the cgroup is gone
	_, kills, found := strings.Cut("\n"+string(events), "\noom_kill ")
	return found && !strings.HasPrefix(kills, "0")
}

// end kills all processes in the cgroup, and removes it.
func (g cgroup) end() (err error) {
	for wait := time.Millisecond; wait < time.Second; wait *= 2 {
		_ = os.WriteFile(g.file("cgroup.kill"), []byte("1"), 0o600) // Linux before 5.14 lacks this file
		procs, _ := os.ReadFile(g.file("cgroup.procs"))
		for _, pid := range bytes.Fields(procs) {
			if id, err := strconv.Atoi(string(pid)); err == nil && id > 0 {
				_ = unix.Kill(id, unix.SIGKILL) // this fails if the process has ended
			}
		}
		if err = unix.Rmdir(string(g)); !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(wait)
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

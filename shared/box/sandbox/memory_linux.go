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
	"time"

	"golang.org/x/sys/unix"
)

// RLIMIT_DATA counts the private memory of one process. What its processes have together,
// and what they share or keep in files of memory, a watch looks at.

const (
	watchEvery = 250 * time.Millisecond
	watchUser  = 8 // one look in so many is at all processes of the user
)

// sharedMemory is the folder of shared memory and POSIX semaphores.
const sharedMemory = "/dev/shm"

// watch ends the program of pid, with all that it has started, when they use more memory
// than the policy allows. It returns when stop is closed or the program has ended.
func (s *Sandbox) watch(pid int, stop <-chan struct{}) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for look := 1; ; look++ {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		all := family(pid)
		if len(all) == 0 {
			return
		}
		if s.user != 0 && look%watchUser == 0 {
			all = ofUser(s.user)
		}
		// The first sum counts memory several times that several processes have mapped.
		if s.memory(all, resident) <= s.policy.Memory || s.memory(all, proportional) <= s.policy.Memory {
			continue
		}
		s.exceeded.Store(true)
		if s.user == 0 || s.endUser() != nil {
			for _, p := range append(family(pid), pid) {
				_ = unix.Kill(p, unix.SIGKILL) // it may have ended
			}
		}
		return
	}
}

// memory returns the bytes that processes use: their private memory, and the larger one of
// what they have mapped of shared memory and what their files in memory hold.
func (s *Sandbox) memory(all []int, of func(pid int) (private, shared int64)) int64 {
	var private, shared, held int64
	seen := map[uint64]bool{}
	for _, pid := range all {
		p, m := of(pid)
		private, shared = private+p, shared+m
		held += memoryFiles(pid, seen)
	}
	if s.user != 0 {
		held += usedIn(sharedMemory, s.user, seen)
	}
	return private + max(shared, held)
}

// resident returns what a process has in RAM.
func resident(pid int) (private, shared int64) {
	text, _ := os.ReadFile(procFile(pid, "status")) // none if it has ended
	return field(text, "RssAnon:"), field(text, "RssShmem:")
}

// proportional returns its share of what it has in RAM. The kernel walks all of its pages
// for that. Where the kernel does not tell, it is what resident returns.
func proportional(pid int) (private, shared int64) {
	text, err := os.ReadFile(procFile(pid, "smaps_rollup"))
	if err != nil || !bytes.Contains(text, []byte("Pss_Anon:")) {
		return resident(pid)
	}
	return field(text, "Pss_Anon:"), field(text, "Pss_Shmem:")
}

// field returns the value of a line such as "RssAnon:  12 kB", in bytes.
func field(text []byte, name string) int64 {
	_, rest, _ := bytes.Cut(text, []byte("\n"+name))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(string(line), "kB")), 10, 64) // 0 for none
	return n << 10
}

func procFile(pid int, name string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), name)
}

// memoryFiles returns what the files in memory hold that a process has open, without those
// in seen.
func memoryFiles(pid int, seen map[uint64]bool) (held int64) {
	open, _ := os.ReadDir(procFile(pid, "fd")) // none if it has ended
	for _, e := range open {
		path := filepath.Join(procFile(pid, "fd"), e.Name())
		to, err := os.Readlink(path)
		if err == nil && (strings.HasPrefix(to, "/memfd:") || strings.HasPrefix(to, sharedMemory+"/")) {
			held += blocks(path, seen, unix.Stat)
		}
	}
	return held
}

// blocks returns what a file holds, and 0 for one in seen.
func blocks(path string, seen map[uint64]bool, stat func(string, *unix.Stat_t) error) int64 {
	var st unix.Stat_t
	if stat(path, &st) != nil || seen[st.Ino] {
		return 0
	}
	seen[st.Ino] = true
	const block = 512
	return st.Blocks * block
}

// inode is what a file in memory costs the kernel besides its content, about.
const inode = 1 << 10

// usedIn returns what the files of a user below a folder hold, without the content of those in
// seen. Empty files need memory, too.
func usedIn(folder string, user uint32, seen map[uint64]bool) (held int64) {
	_ = filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == folder {
			return nil //nolint:nilerr // it is gone
		}
		var st unix.Stat_t
		if unix.Lstat(path, &st) == nil && st.Uid == user {
			held += inode + blocks(path, seen, unix.Lstat)
		}
		return nil
	})
	return held
}

// family returns a process and all that descend from it, as far as their parents live. Only
// those of a user of their own are found without them.
func family(pid int) []int {
	if _, err := os.Stat(procFile(pid, "stat")); err != nil {
		return nil
	}
	all := []int{pid}
	for n := 0; n < len(all); n++ {
		tasks, _ := filepath.Glob(procFile(all[n], "task/*/children")) // the pattern is well formed
		for _, file := range tasks {
			children, _ := os.ReadFile(file) // none if it has ended
			for _, child := range strings.Fields(string(children)) {
				if id, err := strconv.Atoi(child); err == nil && !slices.Contains(all, id) {
					all = append(all, id)
				}
			}
		}
	}
	return all
}

func ofUser(user uint32) (all []int) {
	entries, _ := os.ReadDir("/proc") // what is there before an error counts
	for _, e := range entries {
		var st unix.Stat_t
		if pid, err := strconv.Atoi(e.Name()); err == nil && unix.Stat(procFile(pid, "stat"), &st) == nil && st.Uid == user {
			all = append(all, pid)
		}
	}
	return all
}

// clear removes what the programs of a user of their own have left in folders for everybody.
func (s *Sandbox) clear() error {
	if s.user == 0 {
		return nil
	}
	for _, folder := range []string{sharedMemory, "/tmp", "/var/tmp"} {
		entries, err := os.ReadDir(folder)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &Error{Step: "end", Err: err}
		}
		for _, e := range entries {
			path := filepath.Join(folder, e.Name())
			var st unix.Stat_t
			if unix.Lstat(path, &st) != nil || st.Uid != s.user || path == s.policy.Workspace || path == s.policy.Temp {
				continue
			}
			if err := os.RemoveAll(path); err != nil {
				return &Error{Step: "end", Err: err}
			}
		}
	}
	return nil
}

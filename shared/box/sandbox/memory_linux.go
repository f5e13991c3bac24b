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

// RLIMIT_DATA limits only the private memory of a single process. Without a cgroup, the method
// watch therefore adds up the private memory, the shared memory and the files in memory of all
// processes of a program.

const (
	watchEvery = 250 * time.Millisecond
	watchUser  = 8 // only every eighth time, watch looks for all processes of the user
)

// sharedMemory is the folder of shared memory and POSIX semaphores.
const sharedMemory = "/dev/shm"

// watch kills the program with this pid and all that it has started, if together they use more
// memory than the policy allows. watch returns when stop is closed or the program has ended.
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
		// The first sum is fast, but counts shared memory once for each process that has mapped
		// it. The second sum decides.
		if s.memory(all, resident) <= s.policy.Memory || s.memory(all, proportional) <= s.policy.Memory {
			continue
		}
		s.exceeded.Store(true)
		if s.user == 0 || s.endUser() != nil {
			for _, p := range append(family(pid), pid) {
				_ = unix.Kill(p, unix.SIGKILL) // fails if the process has ended
			}
		}
		return
	}
}

// memory returns how many bytes the processes use. The shared memory that they have mapped and the
// contents of their files in memory overlap, so only the greater of the two counts. The function
// measure returns the private and the shared bytes of one process.
func (s *Sandbox) memory(all []int, measure func(pid int) (private, shared int64)) int64 {
	var private, shared, held int64
	seen := map[uint64]bool{}
	for _, pid := range all {
		p, m := measure(pid)
		private, shared = private+p, shared+m
		held += memoryFiles(pid, seen)
	}
	if s.user != 0 {
		held += usedIn(sharedMemory, s.user, seen)
	}
	return private + max(shared, held)
}

// resident returns how many bytes of memory a process has in RAM.
func resident(pid int) (private, shared int64) {
	text, _ := os.ReadFile(procFile(pid, "status")) // empty if the process has ended
	return field(text, "RssAnon:"), field(text, "RssShmem:")
}

// proportional is like resident, but divides each shared page by the number of processes that have
// mapped it. proportional is slower, because the kernel walks all pages of the process. If the
// kernel cannot do so, proportional returns the result of resident.
func proportional(pid int) (private, shared int64) {
	text, err := os.ReadFile(procFile(pid, "smaps_rollup"))
	if err != nil || !bytes.Contains(text, []byte("Pss_Anon:")) {
		return resident(pid)
	}
	return field(text, "Pss_Anon:"), field(text, "Pss_Shmem:")
}

// field returns the value, in bytes, of a line such as "RssAnon:  12 kB".
func field(text []byte, name string) int64 {
	_, rest, _ := bytes.Cut(text, []byte("\n"+name))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(string(line), "kB")), 10, 64) // n is 0 if there is no such line
	return n << 10
}

func procFile(pid int, name string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), name)
}

// memoryFiles returns how many bytes a process's open files in memory occupy. It skips files whose
// inodes are in seen, and adds the inodes of all others to seen.
func memoryFiles(pid int, seen map[uint64]bool) (held int64) {
	open, _ := os.ReadDir(procFile(pid, "fd")) // empty if the process has ended
	for _, e := range open {
		path := filepath.Join(procFile(pid, "fd"), e.Name())
		to, err := os.Readlink(path)
		if err == nil && (strings.HasPrefix(to, "/memfd:") || strings.HasPrefix(to, sharedMemory+"/")) {
			held += blocks(path, seen, unix.Stat)
		}
	}
	return held
}

// blocks returns how many bytes a file occupies, and adds its inode to seen. If the inode is there
// already, blocks returns 0.
func blocks(path string, seen map[uint64]bool, stat func(string, *unix.Stat_t) error) int64 {
	var st unix.Stat_t
	if stat(path, &st) != nil || seen[st.Ino] {
		return 0
	}
	seen[st.Ino] = true
	const block = 512
	return st.Blocks * block
}

// inode is roughly how many bytes a file in memory occupies besides its contents.
const inode = 1 << 10

// usedIn returns how many bytes of memory the files of a user below a folder occupy. The contents
// of a file do not count if its inode is in seen.
func usedIn(folder string, user uint32, seen map[uint64]bool) (held int64) {
	_ = filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == folder {
			return nil //nolint:nilerr // a file that is gone does not count
		}
		var st unix.Stat_t
		if unix.Lstat(path, &st) == nil && st.Uid == user {
			held += inode + blocks(path, seen, unix.Lstat)
		}
		return nil
	})
	return held
}

// family returns a process and its descendants, without those whose parent has ended.
func family(pid int) []int {
	if _, err := os.Stat(procFile(pid, "stat")); err != nil {
		return nil
	}
	all := []int{pid}
	for n := 0; n < len(all); n++ {
		tasks, _ := filepath.Glob(procFile(all[n], "task/*/children")) // the pattern is well formed
		for _, file := range tasks {
			children, _ := os.ReadFile(file) // empty if the process has ended
			for _, child := range strings.Fields(string(children)) {
				if id, err := strconv.Atoi(child); err == nil && !slices.Contains(all, id) {
					all = append(all, id)
				}
			}
		}
	}
	return all
}

// ofUser returns the pids of all processes of a user.
func ofUser(user uint32) (all []int) {
	entries, _ := os.ReadDir("/proc") // after an error, use the entries that were read
	for _, e := range entries {
		var st unix.Stat_t
		if pid, err := strconv.Atoi(e.Name()); err == nil && unix.Stat(procFile(pid, "stat"), &st) == nil && st.Uid == user {
			all = append(all, pid)
		}
	}
	return all
}

// clear deletes the files that the program has left in folders that everybody may write to, if it
// has its own user.
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

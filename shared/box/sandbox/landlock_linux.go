package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This package uses Landlock without a library. go-landlock (0.11) opens the paths, sets
// no_new_privs and restricts all threads in one call. The shim needs two steps: it opens the paths
// while it still has the rights for that, and restricts its one thread after it has changed its
// user and its directory.

const (
	landRead = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	// landDevice is the rights to devices that every program needs.
	landDevice = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE |
		unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	// landWrite is the rights to folders in which a program may write. landWrite does not include
	// the rights to make devices or to use their ioctls.
	landWrite = landRead | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_REFER |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_MAKE_DIR |
		unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO |
		unix.LANDLOCK_ACCESS_FS_MAKE_SYM
	landFile = unix.LANDLOCK_ACCESS_FS_EXECUTE | landDevice // all rights that apply to a file, not a folder
	landAll  = landWrite | landDevice | unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK
)

// system returns the paths that every program may read and execute. The kernel protects the files
// in /proc and /sys, and denies access to processes of other sandboxes in /proc.
func system() []string {
	return []string{
		"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/opt", "/etc", "/proc", "/sys",
		"/nix/store", "/gnu/store", "/run/current-system", "/run/systemd/resolve", "/var/lib/ca-certificates",
		"/dev/urandom", "/dev/random",
	}
}

// openSystem returns the parts of the system paths that any user may read. A program that runs as
// root gets only these parts, because file modes do not stop root. The program may also list the
// folders in the second result.
func openSystem() (readable, listed []string) {
	for _, path := range system() {
		depth := map[string]int{"/etc": math.MaxInt, "/opt": 3, "/sys": 3}[path]
		parts, whole := openToOthers(path, depth)
		readable = append(readable, parts...)
		if !whole {
			listed = append(listed, path)
		}
	}
	return readable, listed
}

// openToOthers returns the parts of a path that every user may read. The argument depth limits how
// deep it looks into folders. If every user may read everything below the path, openToOthers
// returns only the path itself, and whole is true.
func openToOthers(path string, depth int) (parts []string, whole bool) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, true
	}
	const read, enter = 0o004, 0o001
	need := fs.FileMode(read)
	if info.IsDir() {
		need |= enter
	}
	if info.Mode()&need != need {
		return nil, false
	}
	if !info.IsDir() || depth == 0 {
		return []string{path}, true
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, false
	}
	whole = true
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink != 0 {
			continue // access through a link is decided by the rules for its target
		}
		in, all := openToOthers(filepath.Join(path, e.Name()), depth-1)
		parts, whole = append(parts, in...), whole && all
	}
	if whole {
		return []string{path}, true
	}
	return parts, false
}

// devices lists the devices that every program may read and write.
func devices() []string { return []string{"/dev/null", "/dev/zero", "/dev/full"} }

// ruleset is the file descriptor of a Landlock ruleset, -1 for none.
type ruleset int

// landlock makes the ruleset for the [order] of a shim. landlock must be called while the thread
// may still open the paths.
func landlock(o order) (ruleset, error) {
	if o.Support.Landlock == 0 {
		return -1, nil
	}
	handled := handledAccess(o.Support.Landlock)
	attr := unix.LandlockRulesetAttr{Handled_access_fs: handled}
	if o.Support.Landlock >= 4 && o.Policy.Sockets == NoSockets {
		attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if o.Support.Landlock >= 6 {
		attr.Scoped = unix.LANDLOCK_SCOPE_SIGNAL | unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
	}
	// Old kernels accept this structure, which is longer than theirs, if the fields that they do
	// not know are zero.
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return -1, fmt.Errorf("create a ruleset: %w", errno)
	}
	r := ruleset(fd)
	for _, rule := range rules(o) {
		for _, path := range rule.paths {
			err := r.allow(path, rule.access&handled)
			missing := errors.Is(err, fs.ErrNotExist)
			if err != nil && (!missing || !rule.optional) {
				return -1, err
			}
		}
	}
	return r, nil
}

// rule is one kind of access to some paths.
type rule struct {
	paths    []string
	access   uint64
	optional bool // a path may be missing
}

// rules returns the accesses that an order allows.
func rules(o order) []rule {
	p := o.Policy
	own := p.Write
	for _, dir := range []string{p.Workspace, p.Temp} {
		if dir != "" {
			own = append(own, dir)
		}
	}
	// If the program is missing or cannot be executed, exec reports it.
	program := []string{string(o.Path)}
	if real, err := filepath.EvalSymlinks(program[0]); err == nil {
		program = append(program, real)
	}
	readable, listed := system(), []string(nil)
	if o.User == 0 && os.Geteuid() == 0 {
		readable, listed = openSystem()
	}
	all := []rule{
		{readable, landRead, true},
		{listed, unix.LANDLOCK_ACCESS_FS_READ_DIR, true},
		{devices(), landDevice, true},
		{program, landRead, true},
		{p.Read, landRead, false},
		{own, landWrite, false},
	}
	if o.User != 0 {
		// Programs make POSIX semaphores in this folder. File modes protect the files of other
		// users there.
		all = append(all, rule{[]string{"/dev/shm"}, landWrite, true})
	}
	return all
}

// handledAccess returns the rights that a version of Landlock can deny.
func handledAccess(version int) uint64 {
	handled := uint64(landAll)
	if version < 2 {
		handled &^= unix.LANDLOCK_ACCESS_FS_REFER // older kernels always deny this right
	}
	if version < 3 {
		handled &^= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if version < 5 {
		handled &^= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	return handled
}

// allow adds a rule: access to a path and, if it is a folder, to everything below it.
func (r ruleset) allow(path string, access uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer closeAll(f)
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.IsDir() {
		access &= landFile
	}
	beneath := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(r), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&beneath)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("allow %s: %w", path, errno)
	}
	return nil
}

// enforce restricts this thread, irrevocably, to what the ruleset allows.
func (r ruleset) enforce() error {
	if r < 0 {
		return nil
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(r), 0, 0); errno != 0 {
		return fmt.Errorf("restrict: %w", errno)
	}
	return nil
}

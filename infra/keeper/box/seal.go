package box

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sealRole is the first argument of a process that gives up rights and then becomes a sentry or a
// server of files, as its other arguments say.
//
// The seccomp filter of a sentry allows ptrace, with which a process can attach to other processes
// of its user. Two things keep a sentry from attaching. The keeper, and the program that starts
// keepers, are not dumpable. Each sentry, with its children, is in a Landlock domain of its own.
const sealRole = "keeper-seal"

// Landlocks returns the version of Landlock, 0 if the kernel does not have it.
func Landlocks() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

// sealed returns the arguments of a process that calls seal and then executes the role with args.
// The process may open only its own program, the files in folders, and those of [facts].
func sealed(role string, folders []Folder, args []string) []string {
	text, _ := json.Marshal(folders) // strings and booleans always marshal
	return append([]string{sealRole, string(text), role}, args...)
}

// seal gives up rights of this process, and then executes this program again with the role in
// args, which sealed has made. seal returns only after an error.
func seal(args []string) error {
	if len(args) < 3 {
		return errors.New("a seal needs folders and a role")
	}
	var folders []Folder
	if err := json.Unmarshal([]byte(args[1]), &folders); err != nil {
		return err
	}
	role := args[2:]
	runtime.LockOSThread() // the kernel restricts a thread, and exec keeps the restrictions of the thread that calls it
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	self, err := unix.Open("/proc/self/exe", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := restrict(folders); err != nil {
		return fmt.Errorf("landlock: %w", err)
	}
	return unix.Exec("/proc/self/fd/"+strconv.Itoa(self), role, []string{})
}

// facts returns the kernel's files that a sentry reads before it installs its seccomp filter.
func facts() []string {
	return []string{"/proc/sys/vm/mmap_min_addr", "/proc/cpuinfo", "/proc/self/auxv", "/proc/self/maps", "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"}
}

// restrict puts this thread into a new Landlock domain, if the kernel has Landlock.
func restrict(folders []Folder) error {
	version := Landlocks()
	if version == 0 {
		return nil
	}
	const read = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE
	all := uint64(1)<<13 - 1 // all file rights of version 1
	if version >= 2 {
		all |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if version >= 3 {
		all |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if version >= 5 {
		all |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	attr := unix.LandlockRulesetAttr{Access_fs: all}
	if version >= 4 {
		attr.Access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if version >= 6 {
		attr.Scoped = unix.LANDLOCK_SCOPE_SIGNAL | unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return errno
	}
	allow := func(path string, access uint64) error {
		at, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		var st unix.Stat_t
		if err := unix.Fstat(at, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR { // for a file, the kernel refuses rights that only folders have
			access &= read | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
		}
		rule := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(at)}
		_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, fd, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
		if errno != 0 {
			return errno
		}
		return nil
	}
	if err := allow("/proc/self/exe", read); err != nil {
		return err
	}
	for _, path := range facts() {
		if err := allow(path, unix.LANDLOCK_ACCESS_FS_READ_FILE); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	if len(folders) > 0 { // serveFiles opens this folder
		if err := allow("/proc/self/fd", unix.LANDLOCK_ACCESS_FS_READ_DIR); err != nil {
			return err
		}
	}
	for _, f := range folders {
		rights := all
		if f.ReadOnly {
			rights = read | unix.LANDLOCK_ACCESS_FS_READ_DIR
		}
		if err := allow(f.Host, rights); err != nil {
			return err
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// Hide makes this process not dumpable: other processes of its user cannot attach to it, or read
// its memory or environment.
func Hide() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }

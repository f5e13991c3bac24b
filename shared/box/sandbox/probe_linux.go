package sandbox

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Probe finds out what the system supports.
func Probe() Support {
	s := Support{Limits: true, Landlock: landlockVersion(), Seccomp: auditArch() != 0 && hasSeccomp(), Cgroups: findCgroups("/proc/self")}
	if mayChangeUser() {
		s.FirstUser, s.Users = ownUsers()
	}
	return s
}

func landlockVersion() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

func hasSeccomp() bool {
	action := uint32(unix.SECCOMP_RET_KILL_PROCESS)
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action)))
	return errno == 0
}

// mayChangeUser reports whether the runner may start programs as another user, stop
// them, and read and remove their files.
func mayChangeUser() bool {
	var have [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &have[0]); err != nil {
		return false
	}
	for _, c := range []int{
		unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_KILL, unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_SETPCAP,
	} {
		if have[0].Effective&(1<<c) == 0 {
			return false
		}
	}
	if deny, err := os.ReadFile("/proc/self/setgroups"); err == nil && len(deny) > 0 && deny[0] == 'd' {
		return false // a user namespace in which groups cannot be dropped
	}
	return true
}

func ownUsers() (first, n uint32) {
	users, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return 0, 0
	}
	groups, err := os.ReadFile("/proc/self/gid_map")
	if err != nil {
		return 0, 0
	}
	first, n = userRange(string(users))
	if otherFirst, otherN := userRange(string(groups)); otherFirst != first || otherN != n {
		return 0, 0 // an id must be valid both as a user and as a group
	}
	return first, n
}

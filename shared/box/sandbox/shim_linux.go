package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// shimName is both arguments of a shim process: os.Args[0] and os.Args[1].
const shimName = "dormouse-sandbox"

const (
	orderFD   = 3
	verdictFD = 4
)

// Enter must be the first call in main, with os.Args. If [Sandbox.Start] has started this process
// as a shim, Enter never returns. In any other process, Enter returns at once.
func Enter(args []string) {
	if len(args) != 2 || args[0] != shimName || args[1] != shimName {
		return
	}
	// Landlock, seccomp, users and capabilities apply to a thread, and the program keeps those of
	// the thread that calls exec.
	runtime.LockOSThread()
	verdicts := os.NewFile(verdictFD, "verdict")
	step, err := obey(verdicts)
	v := verdict{Step: step, Text: err.Error()}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		v.Errno = int(errno)
	}
	if raw, err := json.Marshal(v); err == nil {
		_, _ = verdicts.Write(raw) // an error could be reported to nobody
	}
	syscall.Exit(126)
}

// obey carries out the order, and at its end becomes the program by exec. obey returns only if a
// step fails, with the name of the step.
func obey(verdicts *os.File) (step string, err error) {
	var o order
	orders := os.NewFile(orderFD, "order")
	if err := json.NewDecoder(orders).Decode(&o); err != nil {
		return "order", err
	}
	// The program must not inherit any descriptor of the shim.
	if err := closeOnExec(orderFD); err != nil {
		return "descriptors", err
	}
	if o.End {
		return "end", endUser(o.User)
	}
	files, err := landlock(o)
	if err != nil {
		return "landlock", err
	}
	for _, s := range []struct {
		name string
		do   func() error
	}{
		{"cgroup", o.Group.join},
		{"limits", func() error { return limit(o) }},
		{"user", func() error { return become(o.User) }},
		{"privileges", renounce},
		{"death signal", func() error { return dieWith(o) }},
		{"directory", func() error { return enterDirectory(o) }},
		{"landlock", files.enforce},
		{"seccomp", func() error { return filter(o) }},
		{"memory limit", func() error { return limitMemory(o.Policy.Memory) }},
	} {
		if err := s.do(); err != nil {
			return s.name, err
		}
	}
	if _, err := verdicts.Write([]byte{confined}); err != nil {
		return "verdict", err
	}
	return "", syscall.Exec(string(o.Path), strs(o.Args), strs(o.Env))
}

// closeOnExec marks the given descriptor, and all that follow it, as close-on-exec.
func closeOnExec(first int) error {
	err := unix.CloseRange(uint(first), math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	// Linux before 5.11 does not have this flag of close_range. The seccomp filter of an outer
	// sandbox may refuse close_range.
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= first {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// limit sets the limits that the program inherits, except for memory, of which the shim still
// needs some.
func limit(o order) error {
	p := o.Policy
	unix.Umask(0o077)
	// If the machine runs out of memory, the kernel kills this program before the runner.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("500"), 0)
	if o.User != 0 {
		if err := setLimit(unix.RLIMIT_NPROC, int64(p.Processes)); err != nil {
			return err
		}
	}
	if err := syscall.Setrlimit(unix.RLIMIT_CORE, &syscall.Rlimit{}); err != nil {
		return err
	}
	return pin(p.CPUs)
}

// limitMemory sets RLIMIT_DATA for a limit of n bytes, with Reserved added for address space that
// programs only reserve. 0 means no limit.
func limitMemory(n int64) error {
	if n == 0 {
		return nil
	}
	return setLimit(unix.RLIMIT_DATA, n+Reserved)
}

// setLimit sets a resource limit to n, but never above the present limit; 0 changes nothing.
func setLimit(resource int, n int64) error {
	if n == 0 {
		return nil
	}
	var was syscall.Rlimit
	if err := syscall.Getrlimit(resource, &was); err != nil {
		return err
	}
	most := min(uint64(n), was.Max)
	if err := syscall.Setrlimit(resource, &syscall.Rlimit{Cur: most, Max: most}); err != nil {
		return fmt.Errorf("limit %d to %d: %w", resource, n, err)
	}
	return nil
}

// pin restricts this thread, and so the program, to a number of its CPUs; cpus is rounded up, and
// 0 means all.
func pin(cpus float64) error {
	n := int(math.Ceil(cpus))
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return err
	}
	count := may.Count()
	if n == 0 || n >= count {
		return nil
	}
	// Each program skips a number of CPUs, so that not all programs use the same ones.
	skip := os.Getpid() % count
	var mine unix.CPUSet
	for i := 0; mine.Count() < n; i = (i + 1) % (len(may) * bitsPerWord) {
		switch {
		case !may.IsSet(i):
		case skip > 0:
			skip--
		default:
			mine.Set(i)
		}
	}
	return unix.SchedSetaffinity(0, &mine)
}

const bitsPerWord = strconv.IntSize

// become changes the user and group of this thread for good; 0 changes nothing. become makes raw
// system calls, because the functions of package syscall change all threads.
func become(user uint32) error {
	if user == 0 {
		return nil
	}
	if err := dropBounding(); err != nil {
		return err
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
		return fmt.Errorf("setgroups: %w", errno)
	}
	id := uintptr(user)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, id, id, id); errno != 0 {
		return fmt.Errorf("setresgid %d: %w", user, errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, id, id, id); errno != 0 {
		return fmt.Errorf("setresuid %d: %w", user, errno)
	}
	return nil
}

// dropBounding drops every capability from the bounding set, so exec cannot grant any.
func dropBounding() error {
	for c := uintptr(0); ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		switch {
		case errors.Is(err, unix.EINVAL): // c is past the last capability
			return nil
		case err != nil:
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
}

// renounce drops all capabilities, and sets no_new_privs, so that exec of a setuid program grants
// none.
func renounce() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	// Kernels before 4.3 have no ambient set.
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	var none [2]unix.CapUserData
	if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return nil
}

// dieWith requests the parent-death signal again. os/exec has requested it before, but the kernel
// drops that request when the user changes.
func dieWith(o order) error {
	if o.Death == 0 {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(o.Death), 0, 0, 0); err != nil {
		return err
	}
	if os.Getppid() != o.Runner {
		return errors.New("the runner is gone")
	}
	return nil
}

func enterDirectory(o order) error {
	err := os.Chdir(string(o.Dir))
	if errors.Is(err, os.ErrPermission) && o.User != 0 {
		return fmt.Errorf("user %d may not enter it, are all folders above open to others (chmod o+x)? %w", o.User, err)
	}
	return err
}

// endUser kills all processes of the user. kill(-1) does not kill its caller, the shim, which then
// exits.
func endUser(user uint32) error {
	if err := become(user); err != nil {
		return err
	}
	if user == 0 {
		return errors.New("no user")
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_KILL, ^uintptr(0), uintptr(unix.SIGKILL), 0); errno != 0 && errno != unix.ESRCH {
		return fmt.Errorf("kill: %w", errno)
	}
	_, _ = os.NewFile(verdictFD, "verdict").Write([]byte{confined}) // after an error, readVerdict reports that nothing came
	syscall.Exit(0)
	return nil
}

func strs(from [][]byte) []string {
	to := make([]string, 0, len(from))
	for _, b := range from {
		to = append(to, string(b))
	}
	return to
}

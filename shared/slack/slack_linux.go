package slack

import (
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Take gives all threads of this program [Slack], by executing the program once more in
// its own place: in the same process, with args and env, which should be its own. It
// returns when that has been done, or if it cannot be, which costs processor time and
// nothing else. Call it before anything else is begun.
func Take(args, env []string) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was := get()
	program, err := os.Executable()
	if err != nil || was == Slack.Nanoseconds() {
		return
	}
	if set(Slack.Nanoseconds()); get() == Slack.Nanoseconds() { // else it would be executed for ever
		_ = syscall.Exec(program, args, env)
	}
	set(was)
}

func set(ns int64) { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(ns), 0, 0, 0) }

func get() int64 {
	ns, _ := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	return int64(ns)
}

package timerslack

import (
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Take gives [Slack] to all threads of this program by executing the program again in the same
// process. The arguments should be the program's own. Take returns in the new execution, and if
// it cannot set the slack or execute the program. Call it before anything else.
func Take(args, env []string) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was := get()
	program, err := os.Executable()
	if err != nil || was == Slack.Nanoseconds() {
		return
	}
	if set(Slack.Nanoseconds()); get() == Slack.Nanoseconds() { // otherwise the program would execute itself for ever
		_ = syscall.Exec(program, args, env)
	}
	set(was)
}

func set(ns int64) { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(ns), 0, 0, 0) }

func get() int64 {
	ns, _ := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	return int64(ns)
}

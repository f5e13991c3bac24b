package slack

import (
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Set sets the slack of the thread that calls, which should be locked to its goroutine
// ([runtime.LockOSThread]). It cannot fail where there is such a thing.
func Set(d time.Duration) { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(d), 0, 0, 0) }

// Get returns the slack of the thread that calls.
func Get() time.Duration {
	d, _ := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	return time.Duration(d)
}

// Start has what it starts, with start, begin with that slack.
func Start(d time.Duration, start func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer Set(Get())
	Set(d)
	return start()
}

// Take gives all threads of this program that slack, by executing the program once
// more in its own place: in the same process, with args and env, which should be its
// own. It returns when that has been done, or if it cannot be, which costs processor
// time and nothing else. It should be called before anything else is begun.
func Take(d time.Duration, args, env []string) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was := Get()
	program, err := os.Executable()
	if err != nil || was == d {
		return
	}
	if Set(d); Get() == d { // else, without such a thing, it would be executed for ever
		_ = syscall.Exec(program, args, env)
	}
	Set(was)
}

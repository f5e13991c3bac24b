package runner

import "golang.org/x/sys/unix"

// unseen keeps other programs of this user from attaching to this one. Such a program might be a
// sealed server that has broken out of its virtual kernel.
func unseen() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }

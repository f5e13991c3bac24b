package runner

import "golang.org/x/sys/unix"

// unseen keeps other programs of the user from attaching to this one. A server that breaks its
// own kernel is such a program.
func unseen() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }

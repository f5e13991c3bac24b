//go:build !linux

package dormouse

import "golang.org/x/sys/unix"

// Requests for ioctl that read and set the modes of a terminal.
const (
	getModes = unix.TIOCGETA
	setModes = unix.TIOCSETA
)

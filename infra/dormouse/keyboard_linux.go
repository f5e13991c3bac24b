package dormouse

import "golang.org/x/sys/unix"

// The requests to read and set the modes of a terminal.
const (
	getModes = unix.TCGETS
	setModes = unix.TCSETS
)

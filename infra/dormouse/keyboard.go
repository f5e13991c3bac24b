package dormouse

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// keyboard is a terminal whose keys are read without Enter.
type keyboard struct {
	in       *os.File
	giveBack func() // sets the modes of the terminal as they were
}

// takeKeyboard takes the keyboard of a terminal. Ctrl-C and Ctrl-Z keep their meaning. It
// returns nil if the terminal is not this program's to read, such as for a program in the
// background.
func takeKeyboard(in *os.File) *keyboard {
	if owner, err := unix.IoctlGetInt(int(in.Fd()), unix.TIOCGPGRP); err != nil || owner != unix.Getpgrp() {
		return nil
	}
	// A program in the background that reads the terminal, or sets its modes, is stopped. With
	// these signals ignored it gets an error instead.
	signal.Ignore(unix.SIGTTIN, unix.SIGTTOU)
	return keyboardOf(in)
}

// keyboardOf has a terminal give its keys without Enter. It returns nil for a file that is
// no terminal.
func keyboardOf(in *os.File) *keyboard {
	restore, err := changeModes(in, func(modes *unix.Termios) {
		modes.Lflag &^= unix.ICANON | unix.ECHO
		modes.Cc[unix.VMIN], modes.Cc[unix.VTIME] = 1, 0
	})
	if err != nil {
		return nil
	}
	return &keyboard{in, restore}
}

// changeModes changes the modes of a terminal. The caller calls restore to set them as they
// were.
func changeModes(in *os.File, change func(modes *unix.Termios)) (restore func(), err error) {
	fd := int(in.Fd())
	before, err := unix.IoctlGetTermios(fd, getModes)
	if err != nil {
		return nil, err
	}
	modes := *before
	change(&modes)
	if err := unix.IoctlSetTermios(fd, setModes, &modes); err != nil {
		return nil, err
	}
	return func() { _ = unix.IoctlSetTermios(fd, setModes, before) }, nil // the terminal may be gone
}

// read calls the function of each key that is pressed, until the terminal ends.
func (k *keyboard) read(press map[byte]func()) {
	key := make([]byte, 1)
	for {
		if n, err := k.in.Read(key); err != nil || n == 0 {
			return
		}
		if f := press[key[0]]; f != nil {
			f()
		}
	}
}

package dormouse

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// keyboard is a terminal that delivers keys without Enter.
type keyboard struct {
	in       *os.File
	giveBack func() // restores the terminal modes
}

// takeKeyboard makes a terminal deliver keys without Enter. Ctrl-C and Ctrl-Z still send their
// signals. It returns nil if this program is not in the foreground of the terminal.
func takeKeyboard(in *os.File) *keyboard {
	if owner, err := unix.IoctlGetInt(int(in.Fd()), unix.TIOCGPGRP); err != nil || owner != unix.Getpgrp() {
		return nil
	}
	// By default, these signals stop a background program that reads the terminal or sets its
	// modes. If they are ignored, it gets an error instead.
	signal.Ignore(unix.SIGTTIN, unix.SIGTTOU)
	return keyboardOf(in)
}

// keyboardOf makes a terminal deliver keys without Enter. It returns nil if in is no terminal.
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

// changeModes changes the modes of a terminal. restore sets the old ones again.
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
	return func() { _ = unix.IoctlSetTermios(fd, setModes, before) }, nil // an error means that the terminal is gone
}

// read calls the function of each key that the user presses. It returns when the terminal is
// closed.
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

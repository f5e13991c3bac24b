//go:build e2e

package main_test

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// pty opens a pseudo-terminal. Closing the first file hangs it up for the second.
func pty(t *testing.T) (master, terminal *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = terminal.Close() })
	return master, terminal
}

// SIGHUP means to read the servers file again, unless the terminal is gone.
func TestE2ERunEndsWithItsTerminal(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	master, terminal := pty(t)
	m.terminal = terminal
	m.start()
	before := m.count("servers.changed")
	good := read(t, m.servers)
	write(t, m.servers, `{"mcpServers":{"two":{"command":"x"}}}`)
	if err := m.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	m.changed(before)
	write(t, m.servers, good)
	if err := master.Close(); err != nil {
		t.Fatal(err)
	}
	if s := m.ended(patience); s.ExitCode() != 0 {
		t.Errorf("dormouse run ended with %s", s)
	}
}

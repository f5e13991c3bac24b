//go:build e2e

package dormouse_test

import (
	"syscall"
	"testing"

	"github.com/creack/pty"
)

// SIGHUP means to read the servers file again, unless the terminal is gone.
func TestE2ERunEndsWithItsTerminal(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	master, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = master.Close(), terminal.Close() }()
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

//go:build e2e

package dormouse_test

import (
	"os/exec"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// SIGHUP means to read the servers file again, unless the terminal is gone.
func TestE2ERunEndsWithItsTerminal(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	master, terminal, err := pty.Open()
	commontest.OK(t, err)
	defer func() { _, _ = master.Close(), terminal.Close() }()
	m.prepare = func(cmd *exec.Cmd) {
		cmd.Stdin, cmd.SysProcAttr = terminal, &syscall.SysProcAttr{Setsid: true, Setctty: true}
	}
	m.start()
	before := m.count("servers.changed")
	good := read(t, m.servers)
	write(t, m.servers, `{"mcpServers":{"two":{"command":"x"}}}`)
	commontest.OK(t, m.cmd.Process.Signal(syscall.SIGHUP))
	m.changed(before)
	write(t, m.servers, good)
	commontest.OK(t, master.Close())
	if s := m.ended(patience); s.ExitCode() != 0 {
		t.Errorf("dormouse run ended with %s", s)
	}
}

//go:build e2e

package dormouse_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// manager holds the sockets of a service and gets notifications of its states, like
// systemd.
type manager struct {
	sockets []*os.File
	notify  *net.UnixConn
}

// managed makes a machine a service whose sockets a manager holds.
func managed(t *testing.T, m *machine) *manager {
	t.Helper()
	g := &manager{}
	var lc net.ListenConfig
	for range 2 {
		l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
		commontest.OK(t, err)
		f, err := l.(*net.TCPListener).File()
		commontest.OK(t, err)
		_ = l.Close() // f goes on
		t.Cleanup(func() { _ = f.Close() })
		g.sockets = append(g.sockets, f)
	}
	path := filepath.Join(m.tmp, "notify")
	var err error
	if g.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.notify.Close() })
	m.prepare = func(cmd *exec.Cmd) {
		cmd.ExtraFiles = g.sockets
		cmd.Env = append(cmd.Env, "LISTEN_FDS=2", "NOTIFY_SOCKET="+path)
		cmd.Args = slices.Concat([]string{"sh", "-c", `LISTEN_PID=$$ exec "$@"`, "sh", cmd.Path}, cmd.Args[1:])
		cmd.Path = "/bin/sh"
	}
	return g
}

// told returns when the service has notified the manager of a state.
func (g *manager) told(t *testing.T, state string) {
	t.Helper()
	commontest.OK(t, g.notify.SetReadDeadline(time.Now().Add(patience)))
	said := make([]byte, 100)
	n, err := g.notify.Read(said)
	if err != nil || string(said[:n]) != state {
		t.Fatalf("the manager was told %q, %v; want %s", said[:n], err, state)
	}
}

// awaitConnection returns when a client connects to a socket while no service accepts.
func (g *manager) awaitConnection(t *testing.T) {
	t.Helper()
	all := []unix.PollFd{{Fd: int32(g.sockets[0].Fd()), Events: unix.POLLIN}}
	if n, err := unix.Poll(all, int(patience.Milliseconds())); n != 1 || err != nil {
		t.Fatalf("no client has connected: %d, %v", n, err)
	}
}

func TestE2EIdleServiceEndsAndTheNextConnectionStartsIt(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	g := managed(t, m)
	flags := append(sleepy(), "--exit-when-idle", "2s")
	m.start(flags...)
	g.told(t, "READY=1")
	c := m.session("one")
	if got := c.text("echo", `{"text":"before"}`); got != "before" {
		t.Fatalf("the tool said %q", got)
	}

	state := m.ended(patience)
	g.told(t, "STOPPING=1")
	if !state.Success() {
		t.Errorf("the idle program ended with %s", state)
	}
	if left := m.processes(); len(left) > 0 {
		t.Errorf("these processes are left: %v", left)
	}

	answer := make(chan error, 1)
	go func() {
		_, err := c.call("echo", `{"text":"after"}`)
		answer <- err
	}()
	g.awaitConnection(t)
	address := m.urls["one"]
	m.start(flags...)
	g.told(t, "READY=1")
	if m.urls["one"] != address {
		t.Errorf("the address was %s and is %s", address, m.urls["one"])
	}
	commontest.CheckIn(t, "the call that has started the program, in the session of the first one", <-answer)
}

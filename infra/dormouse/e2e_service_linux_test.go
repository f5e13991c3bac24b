//go:build e2e

package dormouse_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// unit is the unit that docs/vps.md installs.
const unit = "../systemd/dormouse.service"

// serviceUID returns a user id that no machine has, like the ids that systemd makes up. A
// test that does not run as root can use only its own user id.
func serviceUID() int {
	if uid := os.Getuid(); uid != 0 {
		return uid
	}
	return 61_234
}

// service returns a machine that runs as systemd runs the unit: with its command line and its
// environment, as a user without a home, whose only folder is the state directory. Only
// the program, the servers file and the ports differ.
func service(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t, servers{"one": nil})
	m.tmp = m.folderOf("tmp-", serviceUID())
	state := m.folderOf("state-", serviceUID())
	m.data = filepath.Join(state, "dormouse")
	commontest.OK(t, os.Mkdir(m.data, 0o700))
	commontest.OK(t, os.Chown(m.data, serviceUID(), -1))
	text := read(t, m.servers)
	m.servers = filepath.Join(m.folderOf("etc-", os.Getuid()), "servers.json")
	write(t, m.servers, text)
	if err := os.Chmod(m.servers, 0o644); err != nil { //nolint:gosec // systemd's users read it
		t.Fatal(err)
	}
	settings := readUnit(t)
	place := strings.NewReplacer(" $DORMOUSE_FLAGS", "", "%S", state, "/etc/dormouse/servers.json", m.servers)
	for _, variable := range settings["Environment"] {
		m.env = append(m.env, place.Replace(variable))
	}
	m.env = append(m.env, "PATH="+os.Getenv("PATH"), "TMPDIR="+m.tmp, "STATE_DIRECTORY="+m.data)
	line := strings.Fields(place.Replace(settings["ExecStart"][0]))
	program := filepath.Join(programs, filepath.Base(line[0]))
	m.prepare = func(cmd *exec.Cmd) {
		// The data folder is that of the unit. The other flags of the test come last, so they win.
		cmd.Args = append(append([]string{program}, line[1:]...), cmd.Args[4:]...)
		cmd.Env, cmd.Dir = m.env, "/"
		cmd.Path = program
		if os.Getuid() == 0 {
			id := uint32(serviceUID())
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
		}
	}
	return m
}

// folderOf makes a folder for a user, where other users can enter.
func (m *machine) folderOf(prefix string, uid int) string {
	m.t.Helper()
	path, err := os.MkdirTemp(stdioFolder, prefix)
	if err == nil {
		err = os.Chmod(path, 0o755)
	}
	if err == nil {
		err = os.Chown(path, uid, -1)
	}
	commontest.OK(m.t, err)
	return path
}

// readUnit returns the settings of the unit by name.
func readUnit(t *testing.T) map[string][]string {
	t.Helper()
	settings := map[string][]string{}
	for line := range strings.Lines(read(t, unit)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			settings[name] = append(settings[name], value)
		}
	}
	return settings
}

// A service of systemd has a user that was made up for it and has no home. Its sessions
// are in the state directory.
func TestE2EServiceWithoutAHomeKeepsItsSessions(t *testing.T) {
	t.Parallel()
	m := service(t)
	m.start()
	c := m.session("one")
	if got := c.text("echo", `{"text":"before"}`); got != "before" {
		t.Fatalf("the tool said %q", got)
	}
	commontest.EqualIn(t, "the server runs as uid", serviceUID(), m.uidOf(m.only("stdio")))
	// npm needs a home to install a server.
	if env := read(t, fmt.Sprintf("/proc/%d/environ", m.only("stdio").pid)); !slices.Contains(strings.Split(env, "\x00"), "HOME="+filepath.Join(m.data, "home")) {
		t.Errorf("the server has no home in the data folder: %q", env)
	}
	m.interrupt()
	m.start()
	again := m.again(c, "one")
	if got := again.text("echo", `{"text":"after"}`); got != "after" {
		t.Errorf("after a restart the tool said %q in the same session", got)
	}
}

// uidOf returns the user of a process.
func (m *machine) uidOf(p process) int {
	m.t.Helper()
	info, err := os.Stat(filepath.Join("/proc", strconv.Itoa(p.pid)))
	commontest.OK(m.t, err)
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

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

// reach sends a request to an endpoint on a connection of its own.
func reach(t *testing.T, url string) error {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, url, nil)
	commontest.OK(t, err)
	c := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := c.Do(r)
	if err != nil {
		return err
	}
	return res.Body.Close()
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

	// An open stream keeps the service up.
	l := m.listen("one")
	m.eventually(asleepWithin, "no box runs", func() bool { return len(m.those("runner", "stdio")) == 0 })
	select {
	case <-m.exited:
		t.Fatal("it has ended although a client listens")
	case <-time.After(6 * time.Second):
	}
	commontest.OKIn(t, "it takes no connection although a client listens", reach(t, m.urls["one"]))
	l.close()
	http.DefaultClient.CloseIdleConnections() // they would keep it too

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

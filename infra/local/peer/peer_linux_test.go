package peer

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func nobody(uint32) bool { return false }

// listen returns a listener on an address of this machine.
func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	commontest.OK(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func accept(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	c, err := l.Accept()
	commontest.OK(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func dial(t *testing.T, network, address string) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), network, address)
	commontest.OK(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// program has bash connect, and hold the connection until it is closed here.
func program(t *testing.T, l net.Listener, script string) net.Conn {
	t.Helper()
	_, port, err := net.SplitHostPort(l.Addr().String())
	commontest.OK(t, err)
	cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
	cmd.Env = append(os.Environ(), "PORT="+port)
	commontest.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() })
	return accept(t, l)
}

func TestProgramsThatWereStartedHere(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	const holds = "exec 3<>/dev/tcp/127.0.0.1/$PORT; read -u 3 || true"
	for name, test := range map[string]struct {
		c    net.Conn
		own  func(uint32) bool
		want bool
	}{
		"a child":              {program(t, l, holds), nobody, true},
		"a child of a child":   {program(t, l, "bash -c '"+holds+"'; true"), nobody, true},
		"an orphan of another": {program(t, l, "(setsid bash -c '"+holds+"' >/dev/null 2>&1 &); exit"), nobody, false},
		"a user of the sandbox": {
			program(t, l, "(setsid bash -c '"+holds+"' >/dev/null 2>&1 &); exit"),
			func(uid uint32) bool { return uid == uint32(os.Geteuid()) }, true,
		},
	} {
		commontest.EqualIn(t, name, test.want, StartedHere(test.c, test.own))
		_ = test.c.Close()
	}
	dial(t, "tcp", l.Addr().String())
	commontest.EqualIn(t, "this process counts as its own child", false, StartedHere(accept(t, l), nobody))
	gone := dial(t, "tcp", l.Addr().String())
	c := accept(t, l)
	_ = gone.Close()
	commontest.EqualIn(t, "a program that has closed its end counts as started here", true, StartedHere(c, nobody))
}

// The kernel and /proc must say the same of every kind of socket.
func TestTheKernelAndItsTablesAgree(t *testing.T) {
	for name, test := range map[string]struct{ listen, network, dial string }{
		"IPv4":                {"127.0.0.1:0", "tcp", "127.0.0.1"},
		"IPv4 to all":         {":0", "tcp4", "127.0.0.1"},
		"IPv6":                {"[::1]:0", "tcp", "::1"},
		"a mapped address":    {":0", "tcp", "::ffff:127.0.0.1"},
		"of this machine":     {":0", "tcp", ownAddress(t)},
		"another of loopback": {"127.0.0.9:0", "tcp", "127.0.0.9"},
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, test.listen)
			_, port, _ := net.SplitHostPort(l.Addr().String())
			dial(t, test.network, net.JoinHostPort(test.dial, port))
			c := accept(t, l)
			there, here := address(c.RemoteAddr()), address(c.LocalAddr())
			table, err := look(there, here)
			if err != nil || table.inode == 0 || table.uid != uint32(os.Geteuid()) {
				t.Fatalf("the tables say %+v, %v", table, err)
			}
			if s, err := ask(there, here); err != nil || s != table {
				t.Errorf("the kernel says %+v, %v, and its tables %+v", s, err, table)
			}
			if !ofThisMachine(there.Addr()) {
				t.Errorf("%s is not of this machine", there)
			}
			if pids := holders(table.inode); len(pids) != 1 || pids[0] != os.Getpid() {
				t.Errorf("%v hold it", pids)
			}
		})
	}
}

// ownAddress returns an address of this machine, one of loopback if there is no other.
func ownAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	commontest.OK(t, err)
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			return n.IP.String()
		}
	}
	return "127.0.0.1"
}

func TestAddressesOfThisMachine(t *testing.T) {
	for text, want := range map[string]bool{ownAddress(t): true, "127.0.0.5": true, "192.0.2.7": false, "2001:db8::7": false} {
		a := netip.MustParseAddr(text)
		commontest.EqualIn(t, a.String(), want, ofThisMachine(a))
		commontest.EqualIn(t, a.String()+" without netlink", want, binds(a))
	}
}

package gate

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
)

// linked returns a gate whose only host is api.test, where serve answers, and what connects to
// it from the other end of its link.
func linked(t *testing.T, serve func(*net.TCPConn)) (*Gate, func() *gonet.TCPConn) {
	t.Helper()
	world, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = world.Close() }) // nobody is connected any more
	go func() {
		for {
			c, err := world.AcceptTCP()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	g := newGate(read(t, "api.test"), func(string) {})
	g.lookup = func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("203.0.113.7")}, nil
	}
	g.dials = func(context.Context, netip.AddrPort) (*net.TCPConn, error) {
		return net.DialTCP("tcp4", nil, world.Addr().(*net.TCPAddr)) //nolint:forcetypeassert // it listens there
	}
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	box, err := newStack(p[0], "10.55.0.2")
	if err := errors.Join(err, g.attach(p[1])); err != nil {
		t.Fatal(err)
	}
	to := tcpip.FullAddress{NIC: 1, Addr: addressOf(g.names["api.test"].String()), Port: 443}
	return g, func() *gonet.TCPConn {
		from := tcpip.FullAddress{NIC: 1, Addr: addressOf("10.55.0.2")}
		c, err := gonet.DialTCPWithBind(t.Context(), box, from, to, ipv4.ProtocolNumber)
		if err != nil {
			t.Error(err)
			return nil
		}
		return c
	}
}

// Many connections at a time end, each with all that was said, and leave nothing in use.
func TestConnectionsAtOnceEnd(t *testing.T) {
	g, dial := linked(t, func(c *net.TCPConn) {
		_, err := io.Copy(struct{ io.Writer }{c}, c)
		_ = errors.Join(err, c.Close()) // the box says what came back
	})
	sent := bytes.Repeat([]byte("0123456789"), 10_000)
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			c := dial()
			if c == nil {
				return
			}
			all.Go(func() {
				_, err := c.Write(sent)
				if err := errors.Join(err, c.CloseWrite()); err != nil {
					t.Error(err)
				}
			})
			if got, err := io.ReadAll(c); !bytes.Equal(got, sent) || err != nil {
				t.Errorf("%d bytes came back: %v", len(got), err)
			}
			_ = c.Close() // all was said
		})
	}
	all.Wait()
	for range cap(g.inUse) { // there is room for all
		g.inUse <- struct{}{}
	}
}

// A connection whose TLS names another host is reset, and that host gets nothing.
func TestAnAllowedAddressGetsNoOtherName(t *testing.T) {
	got := make(chan int64, 1)
	g, dial := linked(t, func(c *net.TCPConn) {
		n, _ := io.Copy(io.Discard, c) // until the gate closes it
		got <- n
	})
	told := make(chan string, 1)
	g.tell = func(text string) { told <- text }
	c := dial()
	if c == nil {
		return
	}
	if _, err := c.Write(clientHello(t, &tls.Config{ServerName: "evil.test", InsecureSkipVerify: true})); err != nil { //nolint:gosec // nobody answers
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("%d bytes, %v", n, err)
	}
	if text := <-told; text != "network: evil.test was refused; add it to x-dormouse.box.network" {
		t.Error(text)
	}
	if n := <-got; n != 0 {
		t.Errorf("the host got %d bytes", n)
	}
}

// A connection of which neither end reads costs a megabyte here at most.
func TestWhoNeverReadsCostsLittle(t *testing.T) {
	const connections, boxHas, full = 32, 256 << 10, incoming + 64<<10 // the box is in this process too
	filled := make(chan struct{}, connections)
	g, dial := linked(t, func(c *net.TCPConn) {
		_ = c.SetWriteBuffer(32 << 10) // what waits, waits in the gate
		wrote := 0
		for part := make([]byte, 16<<10); ; wrote += len(part) {
			if wrote == full {
				filled <- struct{}{}
			}
			if _, err := c.Write(part); err != nil {
				return
			}
		}
	})
	to := g.dials
	g.dials = func(ctx context.Context, at netip.AddrPort) (*net.TCPConn, error) {
		c, err := to(ctx, at)
		if err == nil {
			err = errors.Join(c.SetReadBuffer(32<<10), c.SetWriteBuffer(32<<10))
		}
		return c, err
	}
	used := func() uint64 {
		runtime.GC()
		runtime.GC() // also what pools have kept
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	before := used()
	for range connections {
		if c := dial(); c != nil {
			defer func() { _ = c.Close() }() // nobody has read
			if _, err := c.Write(make([]byte, outgoing)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range connections {
		<-filled
	}
	each := (int64(used())-int64(before))/connections - boxHas //nolint:gosec // far from the limits
	if t.Logf("%d KB each", each>>10); each > 1<<20 {
		t.Errorf("%d bytes each", each)
	}
}

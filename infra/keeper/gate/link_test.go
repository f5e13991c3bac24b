package gate

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
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
	filled, text := make(chan struct{}, connections), make([]byte, 4<<20)
	g, dial := linked(t, func(c *net.TCPConn) {
		_ = c.SetWriteBuffer(32 << 10) // what waits, waits in the gate
		if _, err := c.Write(text[:full]); err != nil {
			t.Error(err)
		}
		filled <- struct{}{}
		_, _ = c.Write(text) // until the test ends
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
			if _, err := c.Write(text[:outgoing]); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range connections {
		<-filled
	}
	each := (int64(used())-int64(before))/connections - boxHas //nolint:gosec // far from the limits
	runtime.KeepAlive(text)
	if t.Logf("%d KB each", each>>10); each > 1<<20 {
		t.Errorf("%d bytes each", each)
	}
}

// What a box asks for beyond its limits is refused with a reason.
func TestTooMuchIsSaid(t *testing.T) {
	g := newGate(read(t, "api.test", "*.wild.test"), nil)
	var told []string
	g.tell = func(text string) { told = append(told, text) }
	for n := range table {
		g.names[fmt.Sprint(n)] = netip.Addr{}
	}
	if m := asked(t, g, "a.wild.test.", dnsmessage.TypeA); len(m.Answers) != 0 {
		t.Errorf("%+v", m)
	}
	g.refuse(g.full(g.names["api.test"], 443))
	if want := []string{"network: a.wild.test was refused: the server knows 65536 names", "network: api.test was refused: 256 connections are open"}; !slices.Equal(told, want) {
		t.Errorf("told %q", told)
	}
}

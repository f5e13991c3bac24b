package gate

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
)

// linked returns a gate whose only host is api.test, at which serve answers. dial connects to that
// host through the gate, as the box would.
func linked(t *testing.T, serve func(*net.TCPConn)) (*Gate, func() *gonet.TCPConn) {
	t.Helper()
	g, _, dial := linkedTo(t, serve)
	return g, dial
}

// linkedTo also returns the other end of the link.
func linkedTo(t *testing.T, serve func(*net.TCPConn)) (_ *Gate, end int, dial func() *gonet.TCPConn) {
	t.Helper()
	world, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	t.Cleanup(func() { _ = world.Close() }) // no connection is left
	go func() {
		for {
			c, err := world.AcceptTCP()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	g := Open(read(t, "api.test"), func(string) {})
	g.lookup = func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("203.0.113.7")}, nil
	}
	g.dials = func(context.Context, netip.AddrPort) (*net.TCPConn, error) {
		return net.DialTCP("tcp4", nil, world.Addr().(*net.TCPAddr)) //nolint:forcetypeassert // it listens there
	}
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	must(t, err)
	box, err := newStack(p[0], "10.55.0.2")
	must(t, errors.Join(err, g.attach(p[1])))
	to := tcpip.FullAddress{NIC: 1, Addr: addressOf(g.names["api.test"].String()), Port: 443}
	return g, p[0], func() *gonet.TCPConn {
		from := tcpip.FullAddress{NIC: 1, Addr: addressOf("10.55.0.2")}
		c, err := gonet.DialTCPWithBind(t.Context(), box, from, to, ipv4.ProtocolNumber)
		if err != nil {
			t.Error(err)
			return nil
		}
		return c
	}
}

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
				if err = errors.Join(err, c.CloseWrite()); err != nil {
					t.Error(err)
				}
			})
			if got, err := io.ReadAll(c); !bytes.Equal(got, sent) || err != nil {
				t.Errorf("%d bytes came back: %v", len(got), err)
			}
			_ = c.Close() // both sides have sent everything
		})
	}
	all.Wait()
	for range cap(g.inUse) { // there is room for all
		g.inUse <- struct{}{}
	}
}

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
	if _, err := c.Write(clientHello(t, &tls.Config{ServerName: "evil.test", InsecureSkipVerify: true})); err != nil { //nolint:gosec // no server answers
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("%d bytes, %v", n, err)
	}
	equal(t, "told", "network: evil.test was refused; add it to x-dormouse.box.network", <-told)
	equal(t, "the host got", 0, <-got)
}

// The gate holds at most a megabyte for a connection whose two ends do not read.
func TestWhoNeverReadsCostsLittle(t *testing.T) {
	const connections, boxHas, full = 32, 256 << 10, incoming + 64<<10 // the box is in this process too
	filled, text := make(chan struct{}, connections), make([]byte, 4<<20)
	g, dial := linked(t, func(c *net.TCPConn) {
		_ = c.SetWriteBuffer(32 << 10) // so that bytes wait in the gate instead
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
		runtime.GC() // the second one frees what sync.Pools have kept
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	before := used()
	for range connections {
		if c := dial(); c != nil {
			defer func() { _ = c.Close() }() // its bytes were not read
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

func TestTooMuchIsSaid(t *testing.T) {
	g := Open(read(t, "api.test", "*.wild.test"), nil)
	var told []string
	g.tell = func(text string) { told = append(told, text) }
	for n := range table {
		g.names[fmt.Sprint(n)] = netip.Addr{}
	}
	equal(t, "answers", 0, len(asked(t, g, "a.wild.test.", dnsmessage.TypeA).Answers))
	g.refuse(g.tooMany(g.names["api.test"], 443))
	if want := []string{"network: a.wild.test was refused: the server knows 65536 names", "network: api.test was refused: 256 connections are open"}; !slices.Equal(told, want) {
		t.Errorf("told %q", told)
	}
}

// Random packets, as a kernel that was taken over could send them, do not crash the gate and lead
// to no host that is not in the list. Afterwards a connection works as before.
func TestFramesOfABrokenKernelHarmNobody(t *testing.T) {
	g, end, dial := linkedTo(t, func(c *net.TCPConn) { _ = c.Close() }) // no bytes are wanted
	var dialed sync.Map
	var dials atomic.Int64
	to := g.dials
	g.dials = func(ctx context.Context, at netip.AddrPort) (*net.TCPConn, error) {
		dialed.Store(at, true)
		dials.Add(1)
		return to(ctx, at)
	}
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same frames in each run
	name := g.names["api.test"].As4()
	places := [][4]byte{name, {10, 55, 0, 1}, {10, 55, 0, 2}, {127, 0, 0, 1}, {169, 254, 169, 254}, {255, 255, 255, 255}, {224, 0, 0, 1}, {0, 0, 0, 0}, {203, 0, 113, 7}}
	for range 20_000 {
		f := make([]byte, 20+r.IntN(80))
		for i := range f {
			f[i] = byte(r.Uint32())
		}
		f[0] = byte([]int{0x45, 0x45, 0x45, 0x46, 0x4f, 0x60, 0x41}[r.IntN(7)])
		if r.IntN(4) > 0 {
			f[2], f[3] = 0, byte(len(f))
		}
		if r.IntN(4) > 0 { // no fragment
			f[6], f[7] = 0, 0
		}
		f[9] = []byte{1, 2, 6, 6, 6, 17, 17, 41}[r.IntN(8)]
		copy(f[12:], places[r.IntN(len(places))][:])
		copy(f[16:], places[r.IntN(len(places))][:])
		if len(f) >= 40 {
			port := []uint16{53, 80, 443, 8080}[r.IntN(4)]
			f[22], f[23] = byte(port>>8), byte(port)
			f[32], f[33] = byte(r.IntN(16))<<4, []byte{2, 2, 4, 16, 1, 0x3f}[r.IntN(6)]
		}
		for {
			if _, err := unix.Write(end, f); !errors.Is(err, unix.EAGAIN) {
				break
			}
			runtime.Gosched() // the gate reads
		}
	}
	c := dial()
	if c == nil {
		return
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	_ = c.Close() // the other end has closed it
	if dials.Load() < 2 {
		t.Error("no frame led to a dial")
	}
	dialed.Range(func(at, _ any) bool {
		if a, _ := at.(netip.AddrPort); a.Addr() != netip.MustParseAddr("203.0.113.7") || a.Port() != 80 && a.Port() != 443 {
			t.Errorf("dialled %v", at)
		}
		return true
	})
}

// Package gate is the network of a box, a program that runs in a virtual kernel (see package box).
// A socket pair carries IP packets between that kernel and a TCP stack in this process, which
// decides about each connection. A gate needs no privileges.
//
// The box asks the gate to resolve names. For each name the gate makes up an address; DNS packets
// of the box never leave this machine. When the box connects to such an address, the gate resolves
// the name and dials. The gate can therefore decide by name (see [Hosts]), and no later DNS answer
// leads the box to another address.
package gate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/pkg/waiter"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"
)

// Nameserver is the address of the gate in every box. The resolv.conf of every image names it.
const Nameserver = "10.55.0.1"

const (
	mtu         = 60_000
	incoming    = 8 * mtu          // bytes of a connection that the gate buffers until the box reads them; less makes the box slower
	outgoing    = 256 << 10        // bytes of a connection that the gate buffers until the other end reads them
	dialed      = 10 * time.Second // time limit for resolving a name and dialing
	table       = 1 << 16          // how many names of a box may get addresses
	questions   = 64               // DNS questions that are answered at a time
	connections = 256              // connections at a time; each buffers at most 1 MB
	places      = 32               // refusals that are reported in a second, each for another name or address
)

// Gate is the network of one box. Its goroutines end with the process.
type Gate struct {
	lookup func(ctx context.Context, name string) ([]netip.Addr, error)
	dials  func(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error)
	hosts  Hosts             // the places that the box may connect to; nil for all
	tell   func(text string) // reports a refusal, see Open
	mu     sync.Mutex
	names  map[string]netip.Addr // the made-up address of each name
	addrs  map[netip.Addr]string // names by their addresses
	asking chan struct{}         // contains an element for each question that is being answered
	inUse  chan struct{}         // contains an element for each open connection

	telling sync.Mutex
	told    map[string]time.Time // when a refusal was last reported, by refusal.place; guarded by the field telling
}

// Link makes a connection from the gate to a box that will start, and returns the box's end for
// gVisor.
func (g *Gate) Link() (*boot.CreateLinksAndRoutesArgs, error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	for _, end := range p {
		for _, option := range []int{unix.SO_SNDBUF, unix.SO_RCVBUF} {
			if err := unix.SetsockoptInt(end, unix.SOL_SOCKET, option, 4<<20); err != nil {
				return nil, err
			}
		}
	}
	if err := g.attach(p[1]); err != nil {
		return nil, err
	}
	return link(os.NewFile(uintptr(p[0]), "link")), nil
}

// Open returns a Gate that lets the box connect to hosts. If hosts is nil, the box may connect to
// everything but this machine and the addresses of [closed]. If hosts is not nil, the function tell
// is called with a line for each name and each connection that the box does not get, before the box
// notices: at most once a second for each place, and 32 times a second in all.
func Open(hosts Hosts, tell func(text string)) *Gate {
	g := &Gate{
		dials: dial, hosts: hosts, tell: tell, told: map[string]time.Time{},
		names: map[string]netip.Addr{}, addrs: map[netip.Addr]string{}, asking: make(chan struct{}, questions), inUse: make(chan struct{}, connections),
		lookup: func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		},
	}
	var names []string
	for _, h := range hosts {
		if h.name != "" {
			names = append(names, h.name)
		}
	}
	slices.Sort(names)
	for _, name := range names { // gives each name the same address in every box with this list
		g.address(name)
	}
	return g
}

// link describes the box's end of a link for gVisor.
func link(end *os.File) *boot.CreateLinksAndRoutesArgs {
	at := func(last byte) net.IP { return net.IPv4(10, 55, 0, last) }
	return &boot.CreateLinksAndRoutesArgs{
		FilePayload:   urpc.FilePayload{Files: []*os.File{end}},
		LoopbackLinks: []boot.LoopbackLink{boot.DefaultLoopbackLink},
		FDBasedLinks: []boot.FDBasedLink{{
			Name: "eth0", MTU: mtu, NumChannels: 1, ProcessorsPerChannel: 1, TXChecksumOffload: true, RXChecksumOffload: true,
			Addresses: []boot.IPWithPrefix{{Address: at(2), PrefixLen: 24}},
			Routes:    []boot.Route{{Destination: net.IPNet{IP: at(0), Mask: net.CIDRMask(24, 32)}}},
			QDisc:     config.QDiscNone,
		}},
		Defaultv4Gateway: boot.DefaultRoute{Name: "eth0", Route: boot.Route{Destination: net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Gateway: at(1)}},
	}
}

// newStack makes a TCP stack with an address, on one end of a link.
func newStack(end int, address string) (*stack.Stack, error) {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4096, Default: incoming, Max: incoming}
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4096, Default: outgoing, Max: outgoing}
	sack := tcpip.TCPSACKEnabled(true)
	for _, option := range []tcpip.SettableTransportProtocolOption{&send, &receive, &sack} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return nil, errors.New(err.String())
		}
	}
	ep, err := fdbased.New(&fdbased.Options{FDs: []int{end}, MTU: mtu, PacketDispatchMode: fdbased.RecvMMsg, RXChecksumOffload: true, TXChecksumOffload: true, ProcessorsPerChannel: 1})
	if err != nil {
		return nil, err
	}
	own := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddressWithPrefix{Address: addressOf(address), PrefixLen: 24}}
	for _, err := range []tcpip.Error{s.CreateNIC(1, ep), s.AddProtocolAddress(1, own, stack.AddressProperties{}), s.SetPromiscuousMode(1, true), s.SetSpoofing(1, true)} {
		if err != nil {
			return nil, errors.New(err.String())
		}
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})
	return s, nil
}

func addressOf(text string) tcpip.Address { return tcpip.AddrFrom4(netip.MustParseAddr(text).As4()) }

// attach makes the TCP stack of the gate, on its end of the link.
func (g *Gate) attach(end int) error {
	s, err := newStack(end, Nameserver)
	if err != nil {
		return err
	}
	names, err := gonet.DialUDP(s, &tcpip.FullAddress{NIC: 1, Addr: addressOf(Nameserver), Port: 53}, nil, ipv4.ProtocolNumber)
	if err != nil {
		return err
	}
	go g.answer(names)
	s.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(s, 0, 64, g.connect).HandlePacket)
	none := udp.NewForwarder(s, func(r *udp.ForwarderRequest) bool {
		g.refuse(&refusal{entry(r.ID().LocalAddress.String(), r.ID().LocalPort), " was refused: a list of hosts opens no UDP"})
		return false // the stack answers with ICMP port unreachable
	})
	s.SetTransportProtocolHandler(udp.ProtocolNumber, none.HandlePacket)
	return nil
}

// # Names

// answer answers the DNS questions of the box.
func (g *Gate) answer(c *gonet.UDPConn) {
	for {
		buf := make([]byte, 1500)
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		g.asking <- struct{}{} // if it blocks, questions wait in the socket, or are lost and repeated by the box
		go func() {
			defer func() { <-g.asking }()
			if m, err := g.reply(buf[:n]); err == nil {
				_, _ = c.WriteTo(m, from) // after an error, the box asks again
			}
		}()
	}
}

// reply returns the DNS answer to a question.
func (g *Gate) reply(question []byte) ([]byte, error) {
	var p dnsmessage.Parser
	h, err := p.Start(question)
	if err != nil {
		return nil, err
	}
	q, err := p.Question()
	if err != nil {
		return nil, err
	}
	h.Response, h.RecursionAvailable, h.Authoritative = true, true, false
	name, wrong := canonical(q.Name.String())
	known := wrong == nil && g.exists(name)
	if !known {
		if address := q.Type == dnsmessage.TypeA || q.Type == dnsmessage.TypeAAAA; address && wrong == nil {
			g.refuse(&refusal{place: name})
		}
		h.RCode = dnsmessage.RCodeNameError
	}
	b := dnsmessage.NewBuilder(nil, h)
	err = errors.Join(b.StartQuestions(), b.Question(q))
	if known && q.Type == dnsmessage.TypeA && err == nil {
		if a, ok := g.address(name); ok {
			err = errors.Join(b.StartAnswers(), b.AResource(dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 60}, dnsmessage.AResource{A: a.As4()}))
		} else {
			g.refuse(&refusal{name, fmt.Sprintf(" was refused: the server knows %d names", table)})
		}
	}
	if err != nil {
		return nil, err
	}
	return b.Finish()
}

// exists reports whether the box gets an address for a name. If there is a list of hosts, only the
// list decides; the name is resolved when the box connects.
func (g *Gate) exists(name string) bool {
	if g.hosts != nil {
		return g.hosts.know(name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialed)
	defer cancel()
	_, err := g.lookup(ctx, name)
	return err == nil
}

// made is the range of the made-up addresses, which no real network uses, because it is reserved
// for benchmarks (RFC 2544).
var made = netip.MustParsePrefix("198.18.0.0/15")

// address returns the made-up address for a name. The result ok is false if too many names have
// addresses.
func (g *Gate) address(name string) (_ netip.Addr, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if a, ok := g.names[name]; ok {
		return a, true
	}
	if len(g.names) >= table {
		return netip.Addr{}, false
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // never fails
	for n := h.Sum32(); ; n++ {
		v := n & 0x1ffff
		a := netip.AddrFrom4([4]byte{198, 18 + byte(v>>16), byte(v >> 8), byte(v)})
		if _, used := g.addrs[a]; !used {
			g.names[name], g.addrs[a] = a, name
			return a, true
		}
	}
}

// Names returns the made-up addresses, by name.
func (g *Gate) Names() map[string]netip.Addr {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.names)
}

// Remember sets the addresses of names to those of an earlier gate with the same hosts. Remember
// must be called before a box asks this gate for a name.
func (g *Gate) Remember(names map[string]netip.Addr) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(names) > table {
		return errors.New("too many names")
	}
	clear(g.names)
	clear(g.addrs)
	for name, a := range names {
		if !made.Contains(a) || g.addrs[a] != "" {
			return fmt.Errorf("the name %q cannot have the address %s", name, a)
		}
		g.names[name], g.addrs[a] = a, name
	}
	return nil
}

// # Connections

// connect handles a connection of the box. connect dials before it accepts the connection, so that
// the box sees when the other end refuses.
func (g *Gate) connect(r *tcp.ForwarderRequest) {
	asked := r.ID()
	to, ok := netip.AddrFromSlice(asked.LocalAddress.AsSlice())
	port := asked.LocalPort
	select {
	case g.inUse <- struct{}{}:
	default:
		g.refuse(g.tooMany(to, port))
		ok = false
	}
	if !ok {
		r.Complete(true)
		return
	}
	go func() {
		defer func() { <-g.inUse }()
		place, out, err := g.dial(to, port)
		if err != nil {
			g.refuse(err)
			r.Complete(true)
			return
		}
		var q waiter.Queue
		ep, failed := r.CreateEndpoint(&q)
		if failed != nil {
			r.Complete(true)
			_ = out.Close() // nothing was sent
			return
		}
		r.Complete(false)
		join(gonet.NewTCPConn(&q, ep), out, func(from io.Reader) ([]byte, error) {
			if g.hosts == nil {
				return nil, nil
			}
			begin, err := g.hosts.greet(from, place, port)
			if err != nil {
				g.refuse(err)
				ep.Abort()
			}
			return begin, err
		})
	}()
}

// tooMany returns the refusal for a connection to an address, because too many connections are open.
func (g *Gate) tooMany(to netip.Addr, port uint16) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return &refusal{entry(cmp.Or(g.addrs[to], to.String()), port), fmt.Sprintf(" was refused: %d connections are open", connections)}
}

// refuse passes a refusal to the function tell. refuse ignores other errors, and refusals over the
// limits that [Open] names.
func (g *Gate) refuse(why error) {
	var r *refusal
	if g.hosts == nil || !errors.As(why, &r) {
		return
	}
	g.telling.Lock()
	defer g.telling.Unlock()
	maps.DeleteFunc(g.told, func(_ string, at time.Time) bool { return time.Since(at) >= time.Second })
	if _, again := g.told[r.place]; again || len(g.told) >= places {
		return
	}
	g.told[r.place] = time.Now()
	g.tell(r.Error())
}

// dial connects to an address. If it is the made-up address of a name, dial resolves the name, and
// connects to the result. The result place is the entry of [Hosts] that would allow the
// connection.
func (g *Gate) dial(to netip.Addr, port uint16) (place string, _ *net.TCPConn, _ error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialed)
	defer cancel()
	g.mu.Lock()
	name := g.addrs[to]
	g.mu.Unlock()
	all := []netip.Addr{to}
	place = entry(cmp.Or(name, to.String()), port)
	if name != "" {
		if g.hosts != nil && !g.hosts.allow(name, port) {
			return place, nil, &refusal{place: place}
		}
		var err error
		if all, err = g.lookup(ctx, name); err != nil {
			return place, nil, &refusal{place, " failed: " + err.Error()}
		}
	}
	var refused error = &refusal{place, " failed: it has no address"}
	for _, a := range all {
		to := netip.AddrPortFrom(a.Unmap(), port)
		if refused = g.forbids(name, to, machine()); refused != nil {
			continue
		}
		c, err := g.dials(ctx, to)
		if err == nil {
			return place, c, nil
		}
		refused = &refusal{place, " failed: " + err.Error()}
	}
	return place, nil, refused
}

// forbids returns an error if the box must not connect to an address, and nil otherwise. The
// argument name is what the box has resolved, "" for none, and machine is the addresses of this
// machine.
func (g *Gate) forbids(name string, to netip.AddrPort, machine []netip.Addr) error {
	a := to.Addr()
	place, leads := entry(a.String(), to.Port()), ""
	if name != "" {
		place, leads = entry(name, to.Port()), a.String()+", "
	}
	switch {
	case lost(a, machine):
		return &refusal{place, " was refused: " + leads + "this machine or no place on a network"}
	case g.hosts.allowAddress(to):
	case closed(a, machine):
		return &refusal{place, " was refused: " + leads + "an address of the machine or of the cloud that it is in"}
	case g.hosts == nil:
	case name == "":
		return &refusal{place: place}
	case private(a) && a.Is4():
		return &refusal{entry(a.String(), to.Port()), " was refused, to which " + name + " leads; add it to x-dormouse.box.network"}
	case private(a):
		return &refusal{place, " was refused: " + leads + "a private address"}
	}
	return nil
}

func dial(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	d := net.Dialer{Control: func(_, address string, _ syscall.RawConn) error {
		if real, err := netip.ParseAddrPort(address); err != nil || real != to {
			return fmt.Errorf("%s became %s", to, address)
		}
		return nil
	}}
	c, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	t, ok := c.(*net.TCPConn)
	if !ok {
		return nil, errors.New("no TCP connection")
	}
	return t, nil
}

// lost reports whether an address is one of this machine, or of no single machine, such as a multicast
// address.
func lost(a netip.Addr, machine []netip.Addr) bool {
	if inner := within(a); inner != a {
		return lost(inner, machine)
	}
	if slices.Contains(machine, a) || a == netip.MustParseAddr(Nameserver) {
		return true
	}
	nowhere := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("240.0.0.0/4"), made}
	return a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() || slices.ContainsFunc(nowhere, func(p netip.Prefix) bool { return p.Contains(a) })
}

// closed reports whether an address is closed to a box whose [Hosts] do not list the address itself:
// one that lost reports, a link-local one, or one of a cloud's metadata service. The first kind is
// closed to all boxes.
func closed(a netip.Addr, machine []netip.Addr) bool {
	a = within(a)
	metadata := []string{
		"168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254",
		"fd00:c1::a9fe:a9fe", "fd00:42::42", "fd00:a9fe:a9fe::1", "fd00:100::100:200",
	}
	return lost(a, machine) || !a.IsGlobalUnicast() || slices.Contains(metadata, a.String())
}

// private reports whether an address belongs to a private network.
func private(a netip.Addr) bool {
	a = within(a)
	return a.IsPrivate() || netip.MustParsePrefix("100.64.0.0/10").Contains(a)
}

// within returns the IPv4 address that an address of NAT64 or 6to4 contains, and any other address
// unchanged.
func within(a netip.Addr) netip.Addr {
	switch b := a.AsSlice(); {
	case netip.MustParsePrefix("64:ff9b::/96").Contains(a):
		return netip.AddrFrom4([4]byte(b[12:16]))
	case netip.MustParsePrefix("2002::/16").Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6]))
	}
	return a
}

// machine returns the addresses of this machine.
func machine() []netip.Addr {
	all, _ := net.InterfaceAddrs() // after an error, loopback addresses are still refused
	var own []netip.Addr
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, p.Addr().Unmap())
		}
	}
	return own
}

// join copies data between the box and the other end until both have closed their connections, and
// then closes both. The function begin reads the first bytes of the box, and returns the bytes to
// send to the other end, or an error to close both connections.
func join(box *gonet.TCPConn, world *net.TCPConn, begin func(io.Reader) ([]byte, error)) {
	var all sync.WaitGroup
	all.Go(func() {
		first, err := begin(box)
		if err == nil {
			_, err = world.Write(first)
		}
		if err == nil {
			_, err = io.CopyBuffer(struct{ io.Writer }{world}, box, make([]byte, 64<<10))
		}
		if err == nil {
			err = world.CloseWrite()
		}
		if err != nil {
			_ = errors.Join(box.Close(), world.Close()) // makes the other direction end
		}
	})
	_, err := io.CopyBuffer(struct{ io.Writer }{box}, struct{ io.Reader }{world}, make([]byte, 128<<10)) // a smaller buffer would not fill the packets of the link
	if err == nil {
		err = box.CloseWrite()
	}
	if err != nil {
		_ = world.Close() // makes the other direction end
	}
	all.Wait()
	_, _ = box.Close(), world.Close()
}

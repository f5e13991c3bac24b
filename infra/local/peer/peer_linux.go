package peer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// StartedHere reports whether the other end of a connection belongs to a program that this process
// has started, directly or through other programs. If own returns true for a user, all programs of
// that user count as started here. Apart from these, only programs of this process's own user count.
//
// If the other end is on this machine and no process that holds it can be found, StartedHere
// returns true. A program could otherwise avoid detection: it could send a request and close its
// end, or pass its end on from process to process.
func StartedHere(c net.Conn, own func(uid uint32) bool) bool {
	there, here := address(c.RemoteAddr()), address(c.LocalAddr())
	if !ofThisMachine(there.Addr()) {
		return false
	}
	s, err := find(there, here)
	if err != nil || s.inode == 0 {
		return true
	}
	if own(s.uid) {
		return true
	}
	if s.uid != uint32(os.Geteuid()) {
		return false
	}
	for range tries {
		if pids := holders(s.inode); len(pids) > 0 {
			return slices.ContainsFunc(pids, descends)
		}
	}
	return true
}

// tries is how often StartedHere looks for the processes that hold a socket, and how often the
// function descends looks for the parents of a process.
const tries = 3

// socket is the other end of a connection. Its inode is 0 if no process holds it.
type socket struct {
	uid   uint32
	inode uint64
}

var errNoSocket = errors.New("there is no such socket")

func address(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	at := t.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
}

// ofThisMachine reports whether an address belongs to this machine.
func ofThisMachine(a netip.Addr) bool {
	if !a.IsValid() || a.IsLoopback() {
		return a.IsValid()
	}
	all, err := net.InterfaceAddrs()
	if err != nil { // a service may be forbidden to use netlink, which InterfaceAddrs needs
		return binds(a)
	}
	return slices.ContainsFunc(all, func(own net.Addr) bool {
		n, ok := own.(*net.IPNet)
		ip, _ := netip.AddrFromSlice(n.IP)
		return ok && ip.Unmap() == a
	})
}

// binds reports whether a socket can be bound to an address, which only works for addresses of
// this machine.
func binds(a netip.Addr) bool {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0)))
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// find returns the socket with these two addresses. It asks the kernel by netlink, which takes 0.1
// ms. After any error it reads /proc: a kernel without this netlink answers as if the socket did not
// exist.
func find(local, remote netip.AddrPort) (socket, error) {
	if s, err := ask(local, remote); err == nil {
		return s, nil
	}
	return look(local, remote)
}

// Sizes, offsets and values from linux/inet_diag.h.
const (
	diagRequest = 56 // struct inet_diag_req_v2
	diagMessage = 72 // struct inet_diag_msg
	diagID      = 8  // offset of the addresses in the request
	diagUID     = 64 // offset in the message
	diagInode   = 68
	tcpListen   = 10
)

// ask asks the kernel for a socket, by sock_diag(7).
func ask(local, remote netip.AddrPort) (socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return socket{}, err
	}
	defer func() { _ = unix.Close(fd) }()
	request := make([]byte, unix.SizeofNlMsghdr+diagRequest)
	native := binary.NativeEndian
	native.PutUint32(request, uint32(len(request)))
	native.PutUint16(request[4:], unix.SOCK_DIAG_BY_FAMILY)
	native.PutUint16(request[6:], unix.NLM_F_REQUEST)
	body := request[unix.SizeofNlMsghdr:]
	body[0], body[1] = unix.AF_INET6, unix.IPPROTO_TCP
	if local.Addr().Is4() {
		body[0] = unix.AF_INET
	}
	native.PutUint32(body[4:], ^uint32(0)) // any state
	id := body[diagID:]
	binary.BigEndian.PutUint16(id, local.Port())
	binary.BigEndian.PutUint16(id[2:], remote.Port())
	copy(id[4:], local.Addr().AsSlice())
	copy(id[20:], remote.Addr().AsSlice())
	native.PutUint64(id[40:], ^uint64(0)) // any cookie
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return socket{}, err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return socket{}, err
	}
	if n < unix.SizeofNlMsghdr+4 {
		return socket{}, unix.EBADMSG
	}
	kind, body := native.Uint16(answer[4:]), answer[unix.SizeofNlMsghdr:n]
	if kind == unix.NLMSG_ERROR {
		return socket{}, unix.Errno(-int32(native.Uint32(body)))
	}
	if len(body) < diagMessage {
		return socket{}, unix.EBADMSG
	}
	if body[1] == tcpListen {
		return socket{}, errNoSocket
	}
	return socket{native.Uint32(body[diagUID:]), uint64(native.Uint32(body[diagInode:]))}, nil
}

// look finds a socket in the tables of /proc. It takes 10 ms.
func look(local, remote netip.AddrPort) (socket, error) {
	for _, table := range []struct {
		path string
		form func(netip.AddrPort) string
	}{{"/proc/net/tcp", short}, {"/proc/net/tcp6", long}} {
		text, err := os.ReadFile(table.path)
		if err != nil {
			return socket{}, err
		}
		// The columns are: number, local address, remote address, state, queues, timer,
		// retransmits, user, timeouts, inode.
		addresses := []byte(" " + table.form(local) + " " + table.form(remote) + " ")
		at := bytes.Index(text, addresses)
		if at < 0 {
			continue
		}
		f := strings.Fields(string(text[at:min(len(text), at+512)]))
		if len(f) < 9 {
			return socket{}, unix.EBADMSG
		}
		uid, err1 := strconv.ParseUint(f[6], 10, 32)
		inode, err2 := strconv.ParseUint(f[8], 10, 64)
		return socket{uint32(uid), inode}, errors.Join(err1, err2)
	}
	return socket{}, errNoSocket
}

// short formats an address as in /proc/net/tcp, and long as in /proc/net/tcp6. The table tcp6 also has
// the IPv4 connections of IPv6 sockets.
func short(a netip.AddrPort) string {
	if !a.Addr().Is4() {
		return "-"
	}
	return hexadecimal(a.Addr().AsSlice(), a.Port())
}

func long(a netip.AddrPort) string {
	sixteen := a.Addr().As16()
	return hexadecimal(sixteen[:], a.Port())
}

// hexadecimal formats an address as 32-bit words in the machine's byte order, and the port.
func hexadecimal(address []byte, port uint16) string {
	var out strings.Builder
	for ; len(address) > 0; address = address[4:] {
		fmt.Fprintf(&out, "%08X", binary.NativeEndian.Uint32(address))
	}
	fmt.Fprintf(&out, ":%04X", port)
	return out.String()
}

// holders returns the processes that have a descriptor of a socket, as far as this process may see
// that. It looks at this process last, and only if no other process has one, because this process
// has as many sockets as clients.
func holders(inode uint64) (pids []int) {
	name, self := fmt.Sprintf("socket:[%d]", inode), os.Getpid()
	for _, pid := range processes() {
		if pid != self && holds(pid, name) {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 && holds(self, name) {
		pids = []int{self}
	}
	return pids
}

// holds reports whether a process has a descriptor of a socket. It begins with the newest
// descriptor: a proxy may have thousands, and this connection was just opened.
func holds(pid int, name string) bool {
	dir, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	if err != nil {
		return false
	}
	defer func() { _ = dir.Close() }()
	open, _ := dir.Readdirnames(-1) // after an error, it has the entries before that
	to := make([]byte, len(name)+1)
	for _, fd := range slices.Backward(open) {
		n, err := unix.Readlinkat(int(dir.Fd()), fd, to)
		if err == nil && string(to[:n]) == name {
			return true
		}
	}
	return false
}

func processes() (pids []int) {
	all, _ := os.ReadDir("/proc") // after an error, it has the entries before that
	for _, e := range all {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// descends reports whether a process descends from this one. This process is a subreaper: it
// becomes the parent of a process whose parent ends. If a parent ends meanwhile, descends
// tries again. The result is true if no try sees the whole chain of parents.
func descends(pid int) bool {
	self := os.Getpid()
	if pid == self {
		return false
	}
	for range tries {
		at, err := pid, error(nil)
		for err == nil && at > 1 && at != self {
			at, err = parent(at)
		}
		if err == nil {
			return at == self
		}
	}
	return true
}

func parent(pid int) (int, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, err
	}
	// The state and the parent's id follow the program's name in parentheses, which may contain
	// anything.
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(f) < 2 {
		return 0, unix.EBADMSG
	}
	return strconv.Atoi(f[1])
}

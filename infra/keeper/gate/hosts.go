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
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// Hosts is the places that a box may connect to; nil means all.
type Hosts []host

// host is one entry of Hosts: a name, all names below a name, or an address.
type host struct {
	name, below string // such as "slack.com" or ".slack.com"; one of name, below and at is set
	at          netip.Addr
	port        uint16 // 0 for 443 and 80
}

// ReadHosts parses a list with entries such as api.github.com, *.slack.com:443 and
// 192.168.1.10:5432.
func ReadHosts(list []string) (Hosts, error) {
	all := Hosts{}
	for _, text := range list {
		h, err := readHost(text)
		if err != nil {
			return nil, fmt.Errorf("the host %q: %w", text, err)
		}
		all = append(all, h)
	}
	return all, nil
}

func readHost(text string) (h host, err error) {
	name, port, ok := strings.Cut(text, ":")
	if n, err := strconv.ParseUint(port, 10, 16); ok && (err != nil || n == 0) {
		return h, errors.New("a port is a number from 1 to 65535, and addresses are IPv4")
	} else {
		h.port = uint16(n)
	}
	if h.at, err = netip.ParseAddr(name); err == nil {
		return h, nil
	}
	name, all := strings.CutPrefix(name, "*.")
	if name, err = canonical(name); err != nil {
		return h, err
	}
	if all {
		h.below = "." + name
	} else {
		h.name = name
	}
	return h, nil
}

// canonical returns a name in the form for comparisons: in lower case and ASCII, without a dot at
// its end. canonical returns an error for a text that some resolvers take for an address, such as
// 0x7f.1.
func canonical(name string) (string, error) {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if strings.ContainsFunc(name, func(r rune) bool { return r > '~' }) {
		var err error
		if name, err = idna.Lookup.ToASCII(name); err != nil {
			return "", err
		}
	}
	last := ""
	for _, last = range strings.Split(name, ".") {
		if last == "" || len(last) > 63 || strings.Trim(last, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return "", errors.New("a name has letters, digits and hyphens between its dots")
		}
	}
	if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") || len(name) > 253 {
		return "", errors.New("it is neither a name nor the four numbers of an address")
	}
	return name, nil
}

// is reports whether the entry includes this name.
func (h host) is(name string) bool {
	return name != "" && (name == h.name || h.below != "" && strings.HasSuffix(name, h.below))
}

func (h host) on(port uint16) bool {
	return h.port == port || h.port == 0 && (port == 443 || port == 80)
}

// know reports whether the list includes a name, on any port.
func (all Hosts) know(name string) bool {
	return slices.ContainsFunc(all, func(h host) bool { return h.is(name) })
}

// allow reports whether the list includes a name on this port.
func (all Hosts) allow(name string, port uint16) bool {
	return slices.ContainsFunc(all, func(h host) bool { return h.is(name) && h.on(port) })
}

// allowAddress reports whether the list includes an address on this port.
func (all Hosts) allowAddress(at netip.AddrPort) bool {
	return slices.ContainsFunc(all, func(h host) bool { return h.at == at.Addr() && h.on(at.Port()) })
}

// refusal is the error for a place that the box may not connect to.
type refusal struct {
	place string // the entry of Hosts that would allow it
	how   string // the text after place; "" if the user could add that entry
}

func (r *refusal) Error() string {
	if r.how != "" {
		return "network: " + r.place + r.how
	}
	return "network: " + r.place + " was refused; add it to x-dormouse.box.network"
}

// entry returns the entry of Hosts for a name or an address with a port.
func entry(place string, port uint16) string {
	if (host{}).on(port) {
		return place
	}
	return net.JoinHostPort(place, strconv.Itoa(int(port)))
}

// # TLS

// hidden is the number of the ClientHello extension that encrypts the name of the host (ECH).
const hidden = 0xfe0d

// greeting is how many bytes of a ClientHello are read at most, including the headers of its
// records.
const greeting = 32 << 10

var errGreeted = errors.New("the ClientHello was read")

// hello is the connection of a TLS server that only reads a ClientHello.
type hello struct {
	net.Conn // nil, because the server only reads and writes
	io.Reader
}

func (h hello) Read(p []byte) (int, error)  { return h.Reader.Read(p) }
func (h hello) Write(p []byte) (int, error) { return len(p), nil }

// greet reads the first bytes of a connection to a place, and returns them. If they are a
// ClientHello of TLS that names a host which the list does not include, or hides which host it names,
// greet returns a refusal: the machine at an allowed address may also serve other hosts.
func (all Hosts) greet(from io.Reader, place string, port uint16) ([]byte, error) {
	first := make([]byte, 2) // the first bytes of a handshake record of SSL 3 or TLS
	for n, want := range []byte{22, 3} {
		if _, err := io.ReadFull(from, first[n:n+1]); err != nil {
			return first[:n], nil //nolint:nilerr // the next read returns the error again
		}
		if first[n] != want {
			return first[:n+1], nil
		}
	}
	var said bytes.Buffer
	said.Write(first)
	var name string
	var more []uint16
	err := tls.Server(hello{Reader: io.MultiReader(bytes.NewReader(first), io.TeeReader(io.LimitReader(from, greeting), &said))}, &tls.Config{
		GetConfigForClient: func(of *tls.ClientHelloInfo) (*tls.Config, error) {
			name, more = of.ServerName, of.Extensions
			return nil, errGreeted
		},
	}).HandshakeContext(context.Background())
	switch {
	case !errors.Is(err, errGreeted):
		return nil, &refusal{place, " was refused: its TLS handshake cannot be read"}
	case slices.Contains(more, hidden):
		return nil, &refusal{place, " was refused: its TLS handshake hides the host that it names (ECH)"}
	case name == "":
		return said.Bytes(), nil
	}
	if name, err = canonical(name); err != nil {
		return nil, &refusal{place, " was refused: its TLS handshake names no host"}
	}
	if !all.allow(name, port) {
		return nil, &refusal{place: entry(name, port)}
	}
	return said.Bytes(), nil
}

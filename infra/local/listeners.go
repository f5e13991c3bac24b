package local

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"syscall"

	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
)

// listeners are the two endpoints for clients: HTTP and WebSocket. Listen, Sockets, PublicURL and
// Access are as in [Config].
type listeners struct {
	Listen, Sockets, PublicURL, Access string

	secure bool           // the endpoints use TLS
	tls    *tls.Config    // the TLS configuration; set before the method start is called
	shows  func() []byte  // returns the certificate that the endpoints use, in DER; nil without TLS
	open   []net.Listener // the HTTP endpoint, then the WebSocket endpoint; at first only those of Config.Opened
	use    use
}

// listenersOf returns the endpoints of a configuration.
func listenersOf(cfg Config) *listeners {
	l := &listeners{Listen: cfg.Listen, Sockets: cfg.Sockets, PublicURL: cfg.PublicURL, Access: cfg.Access, open: cfg.Opened, secure: cfg.TLS.Secure()}
	for i, opened := range cfg.Opened {
		*[]*string{&l.Listen, &l.Sockets}[i] = opened.Addr().String()
	}
	l.PublicURL = cmp.Or(l.PublicURL, publicFor(cfg.TLS.Domain, l.Listen))
	return l
}

// start opens the endpoints that are not open yet.
func (l *listeners) start(ctx context.Context) error {
	var lc net.ListenConfig
	for _, at := range []struct{ address, flag string }{{l.Listen, "--listen"}, {l.socketsAddress(), "--sockets"}}[len(l.open):] {
		opened, err := lc.Listen(ctx, "tcp", at.address)
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%s is used by another program: stop that one, or take a free port with %s 127.0.0.1:0: %w", at.address, at.flag, err)
		}
		if err != nil {
			return fmt.Errorf("an endpoint cannot be opened; name another address with %s: %w", at.flag, err)
		}
		l.open = append(l.open, opened)
	}
	if l.tls != nil {
		plain := l.open
		l.open = nil
		for _, opened := range plain {
			l.open = append(l.open, tls.NewListener(opened, l.tls))
		}
	}
	return nil
}

// LookAtPorts returns an error if Run could not open the endpoints of a [Config] with these values
// of Listen and Sockets. It opens them and closes them at once.
func LookAtPorts(ctx context.Context, listen, sockets string) error {
	l := &listeners{Listen: listen, Sockets: sockets}
	defer l.close()
	return l.start(ctx)
}

func (l *listeners) close() {
	for _, opened := range l.open {
		_ = opened.Close()
	}
}

// socketsAddress returns the address for WebSocket clients. By default its port is the one
// after Listen's.
func (l *listeners) socketsAddress() string {
	if l.Sockets != "" {
		return l.Sockets
	}
	host, port, err := net.SplitHostPort(l.Listen)
	if err != nil {
		return l.Listen // opening Listen will report the error
	}
	if n, err := strconv.ParseUint(port, 10, 16); err == nil && n > 0 {
		port = strconv.FormatUint(n+1, 10)
	}
	return net.JoinHostPort(host, port)
}

// address returns the URL at which clients reach an endpoint: 0 for HTTP, 1 for WebSocket. For HTTP
// it is the public URL, if there is one. Any other URL has the listening address. For an endpoint
// that listens on all addresses, address chooses one that other machines can reach.
func (l *listeners) address(endpoint int) string {
	if l.PublicURL != "" && endpoint == 0 {
		return strings.TrimSuffix(l.PublicURL, "/")
	}
	address := l.open[endpoint].Addr().String()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return l.scheme() + address
	}
	if u, err := url.Parse(l.PublicURL); l.secure && err == nil && u.Hostname() != "" {
		host = u.Hostname() // the name in the certificate
	} else if ip := net.ParseIP(host); ip.IsUnspecified() {
		host = outside()
	}
	return l.scheme() + net.JoinHostPort(host, port)
}

// scheme returns the beginning of the endpoints' URLs.
func (l *listeners) scheme() string {
	if l.secure {
		return "https://"
	}
	return "http://"
}

// publicFor returns the URL of an endpoint that listens at an address and has a certificate for
// domain. It returns "" if domain is "", and for port 0, which stands for a port that is not known
// yet.
func publicFor(domain, listen string) string {
	_, port, err := net.SplitHostPort(listen)
	switch {
	case domain == "" || err == nil && port == "0":
		return ""
	case err == nil && cmp.Or(port, "443") != "443":
		return "https://" + net.JoinHostPort(domain, port)
	default:
		return "https://" + domain
	}
}

// outside returns an IPv4 address at which other machines may reach this one, or 127.0.0.1 if
// there is none.
func outside() string {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return "127.0.0.1"
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && n.IP.To4() != nil {
			return n.IP.String()
		}
	}
	return "127.0.0.1"
}

// servedHosts returns the values of the Host header that an endpoint accepts, for
// transport.ServesHost. With a public URL, these are its host and the names of loopback. For an
// endpoint on loopback, the result is nil, with which ServesHost accepts only the names of loopback:
// otherwise a web page could reach the endpoint through a host name of its author. If the endpoint
// is open to a network, its names are unknown, and the result "*" accepts every name.
func (l *listeners) servedHosts(address string) []string {
	public := ""
	if u, err := url.Parse(l.PublicURL); err == nil {
		public = u.Hostname()
	}
	switch {
	case public != "":
		return []string{"127.0.0.1", "::1", "localhost", public}
	case transport.NamesLoopback(address):
		return nil
	default:
		return []string{"*"}
	}
}

// private reports whether only this machine's user can call, who then needs no key.
func (l *listeners) private() bool { return l.access() == AccessOpen && l.onLoopback() }

func (l *listeners) onLoopback() bool {
	return transport.NamesLoopback(l.Listen) && transport.NamesLoopback(l.socketsAddress())
}

// access returns who may call, as a value of [Config].Access. By default callers need no key if
// both endpoints are on loopback and there is no public URL.
func (l *listeners) access() string {
	switch {
	case l.Access != "":
		return l.Access
	case l.PublicURL == "" && l.onLoopback():
		return AccessOpen
	default:
		return AccessKeys
	}
}

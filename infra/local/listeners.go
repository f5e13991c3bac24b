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

// listeners are the two endpoints for clients: HTTP and WebSocket. The fields with capital
// letters are as in [Config].
type listeners struct {
	Listen, Sockets, PublicURL, Access string

	secure bool           // the endpoints have a certificate
	tls    *tls.Config    // serves that certificate; set from start on
	shows  func() []byte  // returns that certificate in DER; nil without one
	open   []net.Listener // HTTP, then WebSocket; before start those of Config.Opened
	use    use
}

// listenersOf returns the endpoints of a configuration. If the caller has opened an
// endpoint already (Config.Opened), that socket gives its address.
func listenersOf(cfg Config) *listeners {
	l := &listeners{Listen: cfg.Listen, Sockets: cfg.Sockets, PublicURL: cfg.PublicURL, Access: cfg.Access, open: cfg.Opened, secure: cfg.TLS.Secure()}
	for i, opened := range cfg.Opened {
		*[]*string{&l.Listen, &l.Sockets}[i] = opened.Addr().String()
	}
	l.PublicURL = cmp.Or(l.PublicURL, publicFor(cfg.TLS.Domain, l.Listen))
	return l
}

// start opens the endpoints that are not open. It does not serve them yet.
func (l *listeners) start(ctx context.Context) error {
	var lc net.ListenConfig
	for _, at := range []struct{ address, flag string }{{l.Listen, "--listen"}, {l.socketsAddress(), "--sockets"}}[len(l.open):] {
		opened, err := lc.Listen(ctx, "tcp", at.address)
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%s is used by %s: stop that one, or take a free port with %s 127.0.0.1:0: %w", at.address, portOwner(at.address), at.flag, err)
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

// LookAtPorts returns an error if Run could not open the endpoints of Listen and Sockets of a
// [Config]. It closes them at once.
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
		return l.Listen // opening Listen reports the error
	}
	if n, err := strconv.ParseUint(port, 10, 16); err == nil && n > 0 {
		port = strconv.FormatUint(n+1, 10)
	}
	return net.JoinHostPort(host, port)
}

// address returns the URL of an endpoint for clients: the public URL, if there is one, or
// else its listening address. If the endpoint listens on all addresses, the URL has one
// that other machines can reach.
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
		host = u.Hostname() // the certificate is for this name
	} else if ip := net.ParseIP(host); ip.IsUnspecified() {
		host = outside()
	}
	return l.scheme() + net.JoinHostPort(host, port)
}

// scheme returns how URLs of the endpoints begin.
func (l *listeners) scheme() string {
	if l.secure {
		return "https://"
	}
	return "http://"
}

// publicFor returns the public URL of an endpoint that listens at an address and has a
// certificate for domain. It returns "" if domain is "" or the port is not known yet.
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

// outside returns an address of this machine that is not loopback, if there is one.
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

// servedHosts returns the values of Host that an endpoint serves. On loopback, these are
// the names of loopback and the host of the public URL. Otherwise a web page could reach
// the endpoint by a name that its author chose. If the endpoint is open to a network, its
// names are not known, so servedHosts allows every name.
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

// private reports whether the user of this machine is the only caller and needs no
// key.
func (l *listeners) private() bool { return l.access() == AccessOpen && l.onLoopback() }

func (l *listeners) onLoopback() bool {
	return transport.NamesLoopback(l.Listen) && transport.NamesLoopback(l.socketsAddress())
}

// access returns who may call. By default, a caller on loopback needs no key, because it
// is the user of this machine; other callers need a key. The operator's setting wins.
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

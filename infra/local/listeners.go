package local

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// listeners are the two endpoints for clients: HTTP and WebSocket. All fields but open
// are as in [Config].
type listeners struct {
	Listen, Sockets, PublicURL, Access string

	open []net.Listener // HTTP, then WebSocket
}

// start opens both endpoints. It does not serve them yet.
func (l *listeners) start(ctx context.Context) error {
	var lc net.ListenConfig
	for _, at := range []struct{ address, flag string }{{l.Listen, "--listen"}, {l.socketsAddress(), "--sockets"}} {
		opened, err := lc.Listen(ctx, "tcp", at.address)
		if err != nil {
			return fmt.Errorf("an endpoint cannot be opened; name another address with %s: %w", at.flag, err)
		}
		l.open = append(l.open, opened)
	}
	return nil
}

func (l *listeners) close() {
	for _, opened := range l.open {
		_ = opened.Close()
	}
}

// socketsAddress returns the address for WebSocket clients: by default Listen's, one
// port on.
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

// address returns the URL of an endpoint for clients: the public URL, if there is one,
// or else its listening address. For an endpoint that listens on all addresses, it names
// one that other machines reach.
func (l *listeners) address(endpoint int) string {
	if l.PublicURL != "" && endpoint == 0 {
		return strings.TrimSuffix(l.PublicURL, "/")
	}
	address := l.open[endpoint].Addr().String()
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err == nil && ip.IsUnspecified() {
		address = net.JoinHostPort(outside(), port)
	}
	return "http://" + address
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
// the names of loopback and the host of the public URL. If it served any other name
// there, a web page could reach the endpoint by a name of its own. For an endpoint that
// is open to a network, the names are not known.
func (l *listeners) servedHosts(address string) []string {
	public := ""
	if u, err := url.Parse(l.PublicURL); err == nil {
		public = u.Hostname()
	}
	switch {
	case public != "":
		return []string{"127.0.0.1", "::1", "localhost", public}
	case isLoopback(address):
		return nil
	default:
		return []string{"*"}
	}
}

// private reports whether the user of this machine is the only caller and needs no
// key.
func (l *listeners) private() bool { return l.access() == AccessOpen && l.onLoopback() }

func (l *listeners) onLoopback() bool { return isLoopback(l.Listen) && isLoopback(l.socketsAddress()) }

func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// access returns who may call. By default, callers on loopback need no key, because they
// are the user of this machine; others need one. The operator's setting wins.
func (l *listeners) access() string {
	switch {
	case l.Access != "":
		return l.Access
	case l.PublicURL == "" && isLoopback(l.Listen) && isLoopback(l.socketsAddress()):
		return AccessOpen
	default:
		return AccessKeys
	}
}

// announce prints the lines to paste for each server once the endpoints are open, or JSON
// for programs. Warnings go to log.
func (l *listeners) announce(servers []string, asJSON bool, out, log io.Writer) {
	for _, name := range servers {
		web := l.address(0) + "/" + name + "/mcp"
		socket := strings.Replace(l.address(1), "http", "ws", 1) + "/" + socketStage + "?server=" + url.QueryEscape(name)
		if asJSON {
			_ = json.NewEncoder(out).Encode(map[string]any{
				"time": time.Now().UTC(), "kind": "ready", "name": name, "url": web, "socket_url": socket,
			})
			continue
		}
		_, _ = fmt.Fprintf(out, pasteLines, name, web, socket)
	}
	if !asJSON && l.access() != AccessOpen {
		_, _ = fmt.Fprintln(out, keyLines)
	}
	if !asJSON && l.access() == AccessIDP {
		_, _ = fmt.Fprintln(out, idpLines)
	}
	if l.access() == AccessOpen && !l.onLoopback() {
		_, _ = fmt.Fprintln(log, openWarning)
	}
	if !asJSON {
		_, _ = fmt.Fprintln(out, "\nNothing runs until a message comes. Ctrl-C ends it.")
	}
}

const openWarning = `warning: everybody who reaches this machine may call every server, web pages included (--access open on an address that is not loopback). Use --access keys, or name a loopback address with --listen.`

const keyLines = `
Callers need an API key, which "dormouse keys create NAME --server SERVER" makes, in a header:
  Authorization: Bearer KEY`

const idpLines = `Or they sign in at the identity provider; their tokens are for the URL above.`

const pasteLines = `
%[1]s  %[2]s
  %[3]s
  curl -s %[2]s -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' -d '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"curl","version":"1"}}}'
  claude mcp add --transport http %[1]s %[2]s
  npx @modelcontextprotocol/inspector --cli %[2]s --transport http --method tools/list
`

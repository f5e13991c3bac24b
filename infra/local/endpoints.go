package local

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
)

const (
	relayStage  = "relay"
	socketStage = "local"
)

// openSockets makes the two WebSocket APIs, and serves that of the runners on a unix
// socket, where a runner shows a pass.
func (m *machine) openSockets(runners, clients sockets.Routes) (err error) {
	limits := sockets.Home()
	if m.cfg.Limits == LimitsAWS {
		limits = sockets.AWS()
	}
	limits.Idle, limits.Life = cmp.Or(m.cfg.SocketIdle, limits.Idle), cmp.Or(m.cfg.SocketLife, limits.Life)
	open := func(name, stage string, routes sockets.Routes) (*sockets.API, error) {
		return sockets.New(sockets.Config{
			Name: name, Stage: stage, Routes: routes, Limits: limits, Shuffle: m.cfg.Shuffle,
			// The relay has no use for the end of a connection.
			DropDisconnect: stage == relayStage,
			Opened:         m.ledger.opened, Closed: m.ledger.closed, Logger: m.log,
		})
	}
	if m.relay, err = open("relay", relayStage, runners); err != nil {
		return err
	}
	if m.socket, err = open("socket", socketStage, clients); err != nil {
		return err
	}
	m.closers = append(m.closers, m.relay.Close, m.socket.Close)
	return nil
}

// relayURL is where runners connect.
func (m *machine) relayURL() string { return "ws+unix:" + m.socketFile("relay") + ":/" + relayStage }

// startRelay lets runners connect, once everything that they reach is there.
func (m *machine) startRelay(context.Context) error { return m.serveUnix("relay", m.relay) }

// startEndpoints opens what clients connect to: last, when all behind it is there.
func (m *machine) startEndpoints(ctx context.Context) error {
	var lc net.ListenConfig
	open := func(address, flag string) error {
		l, err := lc.Listen(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("an endpoint cannot be opened; name another address with %s: %w", flag, err)
		}
		m.public = append(m.public, l)
		return nil
	}
	if err := open(m.cfg.Listen, "--listen"); err != nil {
		return err
	}
	if err := open(m.socketsAddress(), "--sockets"); err != nil {
		return err
	}
	m.serve(m.public[0], m.functions.web())
	m.serve(m.public[1], m.functions.sockets())
	return nil
}

// socketsAddress is where WebSocket clients connect: where Listen is, one port on,
// if nothing else is said.
func (m *machine) socketsAddress() string {
	if m.cfg.Sockets != "" {
		return m.cfg.Sockets
	}
	host, port, err := net.SplitHostPort(m.cfg.Listen)
	if err != nil {
		return m.cfg.Listen // which says so when it is opened
	}
	if n, err := strconv.ParseUint(port, 10, 16); err == nil && n > 0 {
		port = strconv.FormatUint(n+1, 10)
	}
	return net.JoinHostPort(host, port)
}

// address is what clients call an endpoint: the public URL, if there is one, or else the
// address that it listens on. An endpoint that listens everywhere is named by an address
// that other machines reach.
func (m *machine) address(endpoint int) string {
	if m.cfg.PublicURL != "" && endpoint == 0 {
		return strings.TrimSuffix(m.cfg.PublicURL, "/")
	}
	address := m.public[endpoint].Addr().String()
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err == nil && ip.IsUnspecified() {
		address = net.JoinHostPort(outside(), port)
	}
	return "http://" + address
}

// outside is an address of this machine that is not loopback, if it has any.
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

// servedHosts are the values of Host that an endpoint serves. On loopback these are the
// names of loopback, or a web page could reach it by a name of its own, and the host of
// the public URL. An endpoint that is open to a network has names that nobody here knows.
func (m *machine) servedHosts(address string) []string {
	public := ""
	if u, err := url.Parse(m.cfg.PublicURL); err == nil {
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

func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// access says who is let in. Whoever reaches loopback is the user of this machine; others
// have to say who they are, unless the operator said that they need not.
func (m *machine) access() string {
	switch {
	case m.cfg.Access != "":
		return m.cfg.Access
	case m.cfg.PublicURL == "" && isLoopback(m.cfg.Listen) && isLoopback(m.socketsAddress()):
		return AccessOpen
	default:
		return AccessKeys
	}
}

// announce prints what to paste, once the endpoints are open.
func (m *machine) announce() {
	for _, name := range m.servers.Names() {
		if s, ok := m.servers.Server(name); !ok || s.Disabled {
			continue
		}
		web := m.address(0) + "/" + name + "/mcp"
		socket := strings.Replace(m.address(1), "http", "ws", 1) + "/" + socketStage + "?server=" + url.QueryEscape(name)
		if m.cfg.JSON {
			_ = json.NewEncoder(m.cfg.Out).Encode(map[string]any{
				"time": time.Now().UTC(), "kind": "ready", "name": name, "url": web, "socket_url": socket,
			})
			continue
		}
		_, _ = fmt.Fprintf(m.cfg.Out, pasteLines, name, web, socket)
	}
	if !m.cfg.JSON && m.access() == AccessKeys {
		_, _ = fmt.Fprintln(m.cfg.Out, keyLines)
	}
	if m.access() == AccessOpen && (!isLoopback(m.cfg.Listen) || !isLoopback(m.socketsAddress())) {
		_, _ = fmt.Fprintln(m.cfg.Log, openWarning)
	}
	if !m.cfg.JSON {
		_, _ = fmt.Fprintln(m.cfg.Out, "\nNothing runs until a message comes. Ctrl-C ends it.")
	}
}

const openWarning = `warning: everybody who reaches this machine may call every server, web pages included (--access open on an address that is not loopback). Use --access keys, or name a loopback address with --listen.`

const keyLines = `
Callers need an API key, which "dormouse keys create NAME --server SERVER" makes, in a header:
  Authorization: Bearer KEY`

const pasteLines = `
%[1]s  %[2]s
  %[3]s
  curl -s %[2]s -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' -d '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"curl","version":"1"}}}'
  claude mcp add --transport http %[1]s %[2]s
  npx @modelcontextprotocol/inspector --cli %[2]s --transport http --method tools/list
`

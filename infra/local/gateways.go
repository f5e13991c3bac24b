package local

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"time"
)

const (
	relayStage  = "relay"
	socketStage = "local"
	// eventRetryWait is Lambda's minute, made short: on one machine somebody waits.
	eventRetryWait = time.Second
)

// relayAPI is the WebSocket API that runners connect to. Its function has no use
// for $disconnect, which would wake it for nothing.
func relayAPI(in Invoker, log *slog.Logger) WebSocketConfig {
	return WebSocketConfig{Name: "relay", Stage: relayStage, Function: "relay", Invoker: in, DropDisconnect: true, Logger: log}
}

// socketAPI is the WebSocket API for clients.
func socketAPI(in Invoker, log *slog.Logger) WebSocketConfig {
	return WebSocketConfig{Name: "socket", Stage: socketStage, Function: "socket", Invoker: in, Logger: log}
}

// startLambda opens what functions invoke each other by, at once or at a time.
func (m *machine) startLambda(context.Context) error {
	m.lambda = NewLambdaAPI(LambdaConfig{Invoker: m.pool, Functions: m.pool.names, RetryWait: eventRetryWait, Logger: m.log})
	m.closers = append(m.closers, m.lambda.Close)
	if err := m.serveUnix("invoke", m.lambda); err != nil {
		return err
	}
	schedules, err := NewScheduleAPI(ScheduleConfig{
		Folder: filepath.Join(m.data, "schedules"), Functions: m.pool.names, Send: m.lambda.Send, Logger: m.log,
	})
	if err != nil {
		return err
	}
	m.closers = append(m.closers, schedules.Close)
	return m.serveUnix("schedules", schedules)
}

// startGateways makes the three APIs and serves the runners'. Both WebSocket APIs
// have one @connections socket; their stages tell them apart.
func (m *machine) startGateways(context.Context) error {
	var err error
	if m.rest, err = NewRESTAPI(RESTConfig{Function: "http", Invoker: m.pool, Logger: m.log}); err != nil {
		return err
	}
	open := func(cfg WebSocketConfig) (*WebSocketAPI, error) {
		cfg.Limits, cfg.Shuffle = m.cfg.Limits, m.cfg.Shuffle
		cfg.Opened, cfg.Closed = m.ledger.opened, m.ledger.closed
		return NewWebSocketAPI(cfg)
	}
	if m.relay, err = open(relayAPI(m.pool, m.log)); err != nil {
		return err
	}
	if m.socket, err = open(socketAPI(m.pool, m.log)); err != nil {
		return err
	}
	m.closers = append(m.closers, m.relay.Close, m.socket.Close)
	if err := m.serveUnix("relay", m.relay); err != nil {
		return err
	}
	return m.servePlain("connections", connectionsOf{m.relay, m.socket})
}

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
	m.serve(m.public[0], m.rest)
	m.serve(m.public[1], m.socket)
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

// announce prints what to paste, once the endpoints are open.
func (m *machine) announce() {
	for _, name := range m.servers.Names() {
		if s, ok := m.servers.Server(name); !ok || s.Disabled {
			continue
		}
		web := "http://" + m.public[0].Addr().String() + "/" + name + "/mcp"
		socket := "ws://" + m.public[1].Addr().String() + "/" + socketStage + "?server=" + url.QueryEscape(name)
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
	if !m.cfg.JSON {
		_, _ = fmt.Fprintln(m.cfg.Out, "\nNothing runs until a message comes. Ctrl-C ends it.")
	}
}

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

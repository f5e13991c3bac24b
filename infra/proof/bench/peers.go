package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// peer is one of the compared programs: one way to host an MCP server.
type peer struct {
	name    string
	about   string // its name and mode of durability, for the list of what ran
	keeping string // what it keeps of its clients' state, for the same list
	needs   []string
	keeps   bool // it has sessions
	start   func(context.Context, place, launch) (*endpoint, error)
}

// The programs that peers need, and their sources; see install.go.
const (
	needNode     = "node"
	needMCPProxy = "mcp-proxy"
	needMCPAgent = "mcpagent"
	needTBXark   = "tbxark"
)

// launch says with which servers and data a host is started.
type launch struct {
	server []string // command of the stdio server
	data   string   // folder for data that must outlive the process, "" for a new one

	// The fields below are for Dormouse only; a zero value means Dormouse's default.
	names []string // names of the servers, all with the same command; if there are none, one server "echo"
	own   bool     // each server has tools of its own, named after it
	flags []string
	env   []string
	file  map[string]any // x-dormouse of the servers file
}

// endpoint is a running host of a peer's kind, and its addresses.
type endpoint struct {
	*running
	peer    peer
	address string // where its clients connect
	socket  string // Dormouse's URL for WebSocket clients
	data    string // folder with the host's data
}

// client returns a new client, which has sent nothing yet.
func (e *endpoint) client() *httpClient { return newHTTPClient(e.address, e.peer.keeps) }

// peers returns all compared programs, in the order of the tables.
func peers() []peer {
	const (
		sg, mp, pp = "supergateway 4.0.0", "mcp-proxy 0.13.0", "punkpeye/mcp-proxy 6.7.19"
		all        = "sessions and answers in the store, over a kill of every process; a process a session"
		disk       = all + "; over a loss of power too"
		apart      = "sessions in memory, a process a session, no answers"
		together   = "sessions in memory, one process for all, no answers"
	)
	return []peer{
		{name: "dormouse", about: "dormouse run --durability process, the default without keys", keeping: all, keeps: true, start: dormouse("--durability", "process")},
		{name: "dormouse-disk", about: "dormouse run --durability disk", keeping: disk, keeps: true, start: dormouse("--durability", "disk")},
		{name: "supergateway", about: sg + " --stateful", keeping: apart, needs: []string{needNode}, keeps: true, start: supergateway},
		{name: "mcp-proxy", about: mp, keeping: together, needs: []string{needMCPProxy}, keeps: true, start: mcpProxy},
		{name: "tbxark", about: "TBXark/mcp-proxy 0.43.2", keeping: "no sessions and no answers; one process for all", needs: []string{needTBXark}, start: tbxark},
		{name: "punkpeye", about: pp, keeping: together, needs: []string{needNode}, keeps: true, start: punkpeye},
		{name: "mcpagent", about: "Cloudflare McpAgent, agents 0.32.0 in workerd 2026-11-17: tools of its own", keeping: "sessions in a Durable Object each, no answers", needs: []string{needNode, needMCPAgent}, keeps: true, start: mcpAgent},
		{name: "native", about: "go-sdk 1.8.0, tools in a resident process, event streams", keeping: "sessions in memory, no answers", keeps: true, start: native()},
		{name: "native-event-store", about: "the same with its event store", keeping: "sessions and answers in memory", keeps: true, start: native("-event-store")},
	}
}

// begin finds a free port, starts the command for it, and waits until the command listens there. If it
// does not listen in time, begin stops it. Clients connect at path.
func (p place) begin(ctx context.Context, path string, command func(port string) []string) (*endpoint, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	r, err := p.run(command(port), nil, nil)
	if err != nil {
		return nil, err
	}
	if err := r.answers(ctx, "127.0.0.1:"+port); err != nil {
		r.stop()
		return nil, err
	}
	return &endpoint{running: r, address: "http://127.0.0.1:" + port + path}, nil
}

func native(flags ...string) func(context.Context, place, launch) (*endpoint, error) {
	return func(ctx context.Context, p place, _ launch) (*endpoint, error) {
		return p.begin(ctx, "/mcp", func(port string) []string {
			return append([]string{p.echo(), "-http", "127.0.0.1:" + port}, flags...)
		})
	}
}

func supergateway(ctx context.Context, p place, l launch) (*endpoint, error) {
	return p.begin(ctx, "/mcp", func(port string) []string {
		return []string{
			"node", "--require", p.peerFile("loopback.cjs"), p.node("supergateway", "dist", "index.js"),
			"--stdio", strings.Join(l.server, " "), "--port", port, "--logLevel", "none", "--outputTransport", "streamableHttp", "--stateful",
		}
	})
}

func mcpProxy(ctx context.Context, p place, l launch) (*endpoint, error) {
	return p.begin(ctx, "/mcp", func(port string) []string {
		return append([]string{filepath.Join(p.tools, needMCPProxy, "bin", "mcp-proxy"), "--port", port, "--host", "127.0.0.1", "--log-level", "ERROR", "--"}, l.server...)
	})
}

func tbxark(ctx context.Context, p place, l launch) (*endpoint, error) {
	folder, err := p.folder("tbxark")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(folder, "config.json")
	var failed error
	e, err := p.begin(ctx, "/echo/mcp", func(port string) []string {
		failed = writeJSON(file, map[string]any{
			"mcpProxy":   map[string]any{"addr": "127.0.0.1:" + port, "baseURL": "http://127.0.0.1:" + port, "name": "bench", "version": "1", "type": "streamable-http"},
			"mcpServers": map[string]any{"echo": map[string]any{"command": l.server[0], "args": l.server[1:]}},
		})
		return []string{filepath.Join(p.tools, needTBXark, "mcp-proxy"), "--config", file}
	})
	return e, errors.Join(failed, err)
}

func punkpeye(ctx context.Context, p place, l launch) (*endpoint, error) {
	return p.begin(ctx, "/mcp", func(port string) []string {
		return append([]string{"node", p.node("mcp-proxy", "dist", "bin", "mcp-proxy.mjs"), "--host", "127.0.0.1", "--port", port, "--server", "stream", "--"}, l.server...)
	})
}

func mcpAgent(ctx context.Context, p place, l launch) (*endpoint, error) {
	data, err := l.folder(p)
	if err != nil {
		return nil, err
	}
	e, err := p.begin(ctx, "/mcp", func(port string) []string {
		return []string{
			p.workerd(), "serve", filepath.Join(p.tools, needMCPAgent, "config.capnp"),
			"--socket-addr=http=127.0.0.1:" + port, "--directory-path=objects=" + data,
		}
	})
	if err == nil {
		e.data = data
	}
	return e, err
}

func (l launch) folder(p place) (string, error) {
	if l.data != "" {
		return l.data, nil
	}
	return p.folder("data")
}

// dormouse starts the built program as a user does, with a servers file of its own.
func dormouse(flags ...string) func(context.Context, place, launch) (*endpoint, error) {
	return func(ctx context.Context, p place, l launch) (*endpoint, error) {
		data, err := l.folder(p)
		if err != nil {
			return nil, err
		}
		file := filepath.Join(data, "servers.json")
		if err := serversFile(file, l); err != nil {
			return nil, err
		}
		type event struct {
			Kind      string `json:"kind"`
			URL       string `json:"url"`
			SocketURL string `json:"socket_url"`
		}
		ready := make(chan event, 1)
		command := []string{p.bin("dormouse"), "run", "--listen", "127.0.0.1:0", "--json", "--servers", file, "--data", data}
		r, err := p.run(slices.Concat(command, flags, l.flags), l.env, func(line string) {
			var e event
			if json.Unmarshal([]byte(line), &e) == nil && e.Kind == "ready" {
				ready <- e
			}
		})
		if err != nil {
			return nil, err
		}
		select {
		case e := <-ready:
			return &endpoint{running: r, address: e.URL, socket: e.SocketURL, data: data}, nil
		case <-r.ended:
			return nil, fmt.Errorf("dormouse run ended: %s", r.said())
		case <-time.After(30 * time.Second):
			r.stop()
			return nil, fmt.Errorf("dormouse run did not get ready: %s", r.said())
		}
	}
}

func serversFile(path string, l launch) error {
	server := map[string]any{"command": l.server[0], "args": l.server[1:]}
	names := l.names
	if len(names) == 0 {
		names = []string{"echo"}
	}
	servers := map[string]any{}
	for _, name := range names {
		servers[name] = server
		if l.own {
			servers[name] = map[string]any{"command": l.server[0], "args": append(slices.Clone(l.server[1:]), "-tools", name)}
		}
	}
	document := map[string]any{"mcpServers": servers}
	if l.file != nil {
		document["x-dormouse"] = l.file
	}
	return writeJSON(path, document)
}

func writeJSON(path string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

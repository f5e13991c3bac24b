package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// peer is one way to host an MCP server. Its clients use one dialect.
type peer struct {
	name    string
	about   string // for the list of what ran, with the mode of durability
	keeping string // of its clients' state, for the same list
	needs   []string
	speaks  dialect
	keeps   bool // sessions
	servers bool // it hosts any stdio server; otherwise it has tools of its own
	resumes bool // is worth a look after a cut
	start   func(context.Context, place, launch) (*endpoint, error)
}

// The programs that peers need, and their sources; see install.go.
const (
	needNode     = "node"
	needMCPProxy = "mcp-proxy"
	needAWSLabs  = "awslabs"
	needMCPAgent = "mcpagent"
	needTBXark   = "tbxark"
)

// launch says what is started.
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

// endpoint is a peer that runs.
type endpoint struct {
	*running
	peer    peer
	address string // where clients of its dialect connect
	socket  string // Dormouse's URL for WebSocket clients
	data    string // see launch
	journal *journal
}

// client returns a new client, which has sent nothing yet.
func (e *endpoint) client() client { return e.peer.speaks.make(e.address, e.peer.speaks.version) }

// peers returns all peers, in the order of the tables.
func peers() []peer {
	const (
		sg, mp, pp = "supergateway 4.0.0", "mcp-proxy 0.13.0", "punkpeye/mcp-proxy 6.7.19"
		all        = "sessions and answers in the store, over a kill of every process; a process a session"
		disk       = all + "; over a loss of power too"
		apart      = "sessions in memory, a process a session, no answers"
		together   = "sessions in memory, one process for all, no answers"
		nothing    = "no sessions and no answers"
	)
	return []peer{
		{name: "dormouse", about: "dormouse run --durability process, the default without keys", keeping: all, speaks: streamable(), keeps: true, servers: true, resumes: true, start: dormouse("dormouse", overHTTP, "--durability", "process")},
		{name: "dormouse-disk", about: "dormouse run --durability disk", keeping: disk, speaks: streamable(), keeps: true, servers: true, start: dormouse("dormouse", overHTTP, "--durability", "disk")},
		{name: "dormouse-functions", about: "the programs of the functions, invoked as on AWS by a stand-in", keeping: disk, speaks: streamable(), keeps: true, servers: true, start: dormouse("emulator/dormouse", overHTTP)},
		{name: "dormouse-ws", about: "dormouse run --durability process, over WebSocket", keeping: all, speaks: webSocket(), keeps: true, servers: true, start: dormouse("dormouse", overSocket, "--durability", "process")},
		{name: "dormouse-sse", about: "dormouse run --durability process, over HTTP+SSE", keeping: all, speaks: eventStream(), keeps: true, servers: true, start: dormouse("dormouse", overSSE, "--durability", "process")},
		{name: "dormouse-modern", about: "dormouse run --durability process, to a client of 2026-07-28", keeping: "answers of tasks and lists; a process a key", speaks: modern(), servers: true, start: dormouse("dormouse", overHTTP, "--durability", "process")},
		{name: "supergateway", about: sg + " --stateful", keeping: apart, needs: []string{needNode}, speaks: streamable(), keeps: true, servers: true, resumes: true, start: supergateway("/mcp", "--outputTransport", "streamableHttp", "--stateful")},
		{name: "supergateway-stateless", about: sg + ", one server a request", keeping: nothing, needs: []string{needNode}, speaks: sessionless(), servers: true, start: supergateway("/mcp", "--outputTransport", "streamableHttp")},
		{name: "supergateway-sse", about: sg + ", HTTP+SSE", keeping: together, needs: []string{needNode}, speaks: eventStream(), keeps: true, servers: true, start: supergateway("/sse", "--outputTransport", "sse")},
		{name: "mcp-proxy", about: mp, keeping: together, needs: []string{needMCPProxy}, speaks: streamable(), keeps: true, servers: true, resumes: true, start: mcpProxy("/mcp")},
		{name: "mcp-proxy-sse", about: mp + ", HTTP+SSE", keeping: together, needs: []string{needMCPProxy}, speaks: eventStream(), keeps: true, servers: true, start: mcpProxy("/sse")},
		{name: "tbxark", about: "TBXark/mcp-proxy 0.43.2", keeping: "no sessions and no answers; one process for all", needs: []string{needTBXark}, speaks: sessionless(), servers: true, start: tbxark},
		{name: "punkpeye", about: pp, keeping: together, needs: []string{needNode}, speaks: streamable(), keeps: true, servers: true, resumes: true, start: punkpeye},
		{name: "mcpagent", about: "Cloudflare McpAgent, agents 0.32.0 in workerd 2026-11-17: tools of its own", keeping: "sessions in a Durable Object each, no answers", needs: []string{needNode, needMCPAgent}, speaks: streamable(), keeps: true, resumes: true, start: mcpAgent},
		{name: "awslabs", about: "run-mcp-servers-with-aws-lambda 0.5.22, one server a request", keeping: nothing, needs: []string{needAWSLabs}, speaks: sessionless(), servers: true, start: awsLabs},
		{name: "native", about: "go-sdk 1.8.0, tools in a resident process, event streams", keeping: "sessions in memory, no answers", speaks: streamable(), keeps: true, resumes: true, start: native()},
		{name: "native-json", about: "the same, JSON answers", keeping: "sessions in memory, no answers", speaks: streamable(), keeps: true, start: native("-json")},
		{name: "native-event-store", about: "the same with its event store", keeping: "sessions and answers in memory", speaks: streamable(), keeps: true, resumes: true, start: native("-event-store")},
		{name: "native-modern", about: "the same, stateless, for clients of 2026-07-28", keeping: nothing, speaks: modern(), start: native("-json", "-stateless")},
	}
}

// begin starts a command and waits until it listens on port. If it does not, begin stops
// it.
func (p place) begin(ctx context.Context, command, env []string, port, path string) (*endpoint, error) {
	r, err := p.run(command, env, nil)
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
		port, err := freePort(ctx)
		if err != nil {
			return nil, err
		}
		return p.begin(ctx, append([]string{p.echo(), "-http", "127.0.0.1:" + port}, flags...), nil, port, "/mcp")
	}
}

func supergateway(path string, flags ...string) func(context.Context, place, launch) (*endpoint, error) {
	return func(ctx context.Context, p place, l launch) (*endpoint, error) {
		port, err := freePort(ctx)
		if err != nil {
			return nil, err
		}
		return p.begin(ctx, append([]string{
			"node", "--require", filepath.Join(p.root, "infra/proof/bench/peers/loopback.cjs"),
			p.node("supergateway", "dist", "index.js"), "--stdio", strings.Join(l.server, " "), "--port", port, "--logLevel", "none",
		}, flags...), nil, port, path)
	}
}

func mcpProxy(path string) func(context.Context, place, launch) (*endpoint, error) {
	return func(ctx context.Context, p place, l launch) (*endpoint, error) {
		port, err := freePort(ctx)
		if err != nil {
			return nil, err
		}
		command := append([]string{p.python(needMCPProxy, "mcp-proxy"), "--port", port, "--host", "127.0.0.1", "--log-level", "ERROR", "--"}, l.server...)
		return p.begin(ctx, command, nil, port, path)
	}
}

func tbxark(ctx context.Context, p place, l launch) (*endpoint, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	folder, err := p.folder("tbxark")
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(map[string]any{
		"mcpProxy":   map[string]any{"addr": "127.0.0.1:" + port, "baseURL": "http://127.0.0.1:" + port, "name": "bench", "version": "1", "type": "streamable-http"},
		"mcpServers": map[string]any{"echo": map[string]any{"command": l.server[0], "args": l.server[1:]}},
	})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(folder, "config.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	return p.begin(ctx, []string{filepath.Join(p.tools, needTBXark, "mcp-proxy"), "--config", file}, nil, port, "/echo/mcp")
}

func punkpeye(ctx context.Context, p place, l launch) (*endpoint, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	command := append([]string{"node", p.node("mcp-proxy", "dist", "bin", "mcp-proxy.mjs"), "--host", "127.0.0.1", "--port", port, "--server", "stream", "--"}, l.server...)
	return p.begin(ctx, command, nil, port, "/mcp")
}

func awsLabs(ctx context.Context, p place, l launch) (*endpoint, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	command := append([]string{p.python(needAWSLabs, "python"), filepath.Join(p.root, "infra/proof/bench/peers/gateway.py"), port}, l.server...)
	return p.begin(ctx, command, []string{"LOG_LEVEL=CRITICAL"}, port, "/mcp")
}

func mcpAgent(ctx context.Context, p place, l launch) (*endpoint, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	data, err := l.folder(p)
	if err != nil {
		return nil, err
	}
	e, err := p.begin(ctx, []string{
		p.workerd(), "serve", filepath.Join(p.tools, needMCPAgent, "config.capnp"),
		"--socket-addr=http=127.0.0.1:" + port, "--directory-path=objects=" + data,
	}, nil, port, "/mcp")
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

// dormouse starts a built program as a user does, with a servers file of its own. at
// chooses the URL at which its clients connect.
func dormouse(program string, at func(url, socketURL string) string, flags ...string) func(context.Context, place, launch) (*endpoint, error) {
	return func(ctx context.Context, p place, l launch) (*endpoint, error) {
		data, err := l.folder(p)
		if err != nil {
			return nil, err
		}
		file := filepath.Join(data, "servers.json")
		if err := serversFile(file, l); err != nil {
			return nil, err
		}
		type addresses struct{ URL, SocketURL string }
		ready, once, events := make(chan addresses, 1), sync.Once{}, &journal{}
		command := []string{p.bin(program), "run", "--listen", "127.0.0.1:0", "--json", "--servers", file, "--data", data}
		r, err := p.run(slices.Concat(command, flags, l.flags), l.env, func(line string) {
			var e struct {
				Kind      string `json:"kind"`
				URL       string `json:"url"`
				SocketURL string `json:"socket_url"`
			}
			events.note(line)
			if json.Unmarshal([]byte(line), &e) == nil && e.Kind == "ready" {
				once.Do(func() { ready <- addresses{e.URL, e.SocketURL} })
			}
		})
		if err != nil {
			return nil, err
		}
		select {
		case a := <-ready:
			return &endpoint{running: r, address: at(a.URL, a.SocketURL), socket: a.SocketURL, data: data, journal: events}, nil
		case <-r.ended:
			return nil, fmt.Errorf("dormouse run ended: %s", r.said())
		case <-time.After(30 * time.Second):
			r.stop()
			return nil, fmt.Errorf("dormouse run did not get ready: %s", r.said())
		}
	}
}

func overHTTP(url, _ string) string   { return url }
func overSSE(url, _ string) string    { return strings.TrimSuffix(url, "/mcp") + "/sse" }
func overSocket(_, url string) string { return url }

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
	text, err := json.Marshal(document)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// journal keeps the events about processes that dormouse run prints.
type journal struct {
	mu     sync.Mutex
	events []happened
}

type happened struct {
	Time time.Time `json:"time"`
	Kind string    `json:"kind"`
	Name string    `json:"name"`
	PID  int       `json:"pid"`
}

func (j *journal) note(line string) {
	var e happened
	if json.Unmarshal([]byte(line), &e) != nil || e.Time.IsZero() {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, e)
}

// first returns the time of the first event of a kind and name at or after a time. ok is
// false if there is none.
func (j *journal) first(after time.Time, kind, name string) (at time.Time, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.events {
		if e.Kind == kind && e.Name == name && !e.Time.Before(after) {
			return e.Time, true
		}
	}
	return time.Time{}, false
}

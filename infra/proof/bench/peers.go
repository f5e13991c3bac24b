package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// peer is one way to host an MCP server. Its clients use one dialect.
type peer struct {
	name    string
	about   string // for the table of what ran
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
)

// launch says what is started.
type launch struct {
	server []string // command of the stdio server
	data   string   // folder for data that must outlive the process, "" for a new one

	// The fields below are for Dormouse only; a zero value means Dormouse's default.
	names []string // names of the servers, all with the same command; if there are none, one server "echo"
	flags []string
	env   []string
	file  map[string]any // x-dormouse of the servers file
}

// endpoint is a peer that runs.
type endpoint struct {
	*running
	peer    peer
	address string // where clients of its dialect connect
	data    string // see launch
	journal *journal
}

// client returns a new client, which has sent nothing yet.
func (e *endpoint) client() client { return e.peer.speaks.make(e.address, e.peer.speaks.version) }

// peers returns all peers, in the order of the tables.
func peers() []peer {
	const sg, mp = "supergateway 4.0.0", "mcp-proxy 0.13.0"
	return []peer{
		{name: "dormouse", about: "dormouse run", speaks: streamable(), keeps: true, servers: true, resumes: true, start: dormouse("dormouse", overHTTP)},
		{name: "dormouse-process", about: "the programs of the functions, invoked as on AWS by a stand-in", speaks: streamable(), keeps: true, servers: true, start: dormouse("emulator/dormouse", overHTTP)},
		{name: "dormouse-ws", about: "dormouse run, over WebSocket", speaks: webSocket(), keeps: true, servers: true, start: dormouse("dormouse", overSocket)},
		{name: "dormouse-sse", about: "dormouse run, over HTTP+SSE", speaks: eventStream(), keeps: true, servers: true, start: dormouse("dormouse", overSSE)},
		{name: "dormouse-modern", about: "dormouse run, to a client of 2026-07-28", speaks: modern(), servers: true, start: dormouse("dormouse", overHTTP)},
		{name: "supergateway", about: sg + " --stateful, one server a session", needs: []string{needNode}, speaks: streamable(), keeps: true, servers: true, resumes: true, start: supergateway("/mcp", "--outputTransport", "streamableHttp", "--stateful")},
		{name: "supergateway-stateless", about: sg + ", one server a request", needs: []string{needNode}, speaks: sessionless(), servers: true, start: supergateway("/mcp", "--outputTransport", "streamableHttp")},
		{name: "supergateway-sse", about: sg + ", HTTP+SSE, one server for all", needs: []string{needNode}, speaks: eventStream(), keeps: true, servers: true, start: supergateway("/sse", "--outputTransport", "sse")},
		{name: "mcp-proxy", about: mp + ", one server for all sessions", needs: []string{needMCPProxy}, speaks: streamable(), keeps: true, servers: true, resumes: true, start: mcpProxy("/mcp")},
		{name: "mcp-proxy-sse", about: mp + ", HTTP+SSE, one server for all sessions", needs: []string{needMCPProxy}, speaks: eventStream(), keeps: true, servers: true, start: mcpProxy("/sse")},
		{name: "mcpagent", about: "Cloudflare McpAgent, agents 0.32.0 in workerd 2026-11-17: tools of its own in a Durable Object a session", needs: []string{needNode, needMCPAgent}, speaks: streamable(), keeps: true, resumes: true, start: mcpAgent},
		{name: "awslabs", about: "run-mcp-servers-with-aws-lambda 0.5.22, one server a request", needs: []string{needAWSLabs}, speaks: sessionless(), servers: true, start: awsLabs},
		{name: "native", about: "go-sdk 1.8.0, tools in a resident process, event streams", speaks: streamable(), keeps: true, resumes: true, start: native()},
		{name: "native-json", about: "the same, JSON answers", speaks: streamable(), keeps: true, start: native("-json")},
		{name: "native-event-store", about: "the same, events kept in memory", speaks: streamable(), keeps: true, resumes: true, start: native("-event-store")},
		{name: "native-modern", about: "the same, stateless, for clients of 2026-07-28", speaks: modern(), start: native("-json", "-stateless")},
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
func dormouse(program string, at func(url, socketURL string) string) func(context.Context, place, launch) (*endpoint, error) {
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
		r, err := p.run(append(command, l.flags...), l.env, func(line string) {
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
			return &endpoint{running: r, address: at(a.URL, a.SocketURL), data: data, journal: events}, nil
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

// Command go is the official Go SDK, of any release, as a program that takes steps, such as connect
// and call. ../../doc.go lists the steps.
//
//	go --url http://127.0.0.1:8080/echo/mcp --transport http
//	go --url http://127.0.0.1:8080/echo/sse --transport sse
//
// Each release has a module file: go build -modfile=1.2.0.mod. go.mod is for the
// newest one.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const limit = 20 * time.Second

// outcome is one line of output. Error is empty when OK.
type outcome struct {
	Client string `json:"client"`
	Check  string `json:"check"`
	OK     bool   `json:"ok"`
	MS     int64  `json:"ms"`
	Error  string `json:"error,omitempty"`
}

type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.buf.Reset()
	return strings.TrimSpace(l.buf.String())
}

type program struct {
	transport mcp.Transport
	session   *mcp.ClientSession
	pushed    chan struct{}
}

func main() {
	url := flag.String("url", "", "the MCP endpoint")
	kind := flag.String("transport", "http", "the transport: http or sse")
	flag.Parse()
	var said logged
	log.SetOutput(&said)
	slog.SetDefault(slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn})))
	p := &program{transport: &mcp.StreamableClientTransport{Endpoint: *url}, pushed: make(chan struct{}, 100)}
	if *kind == "sse" {
		p.transport = &mcp.SSEClientTransport{Endpoint: *url}
	}
	out := json.NewEncoder(os.Stdout)
	steps := bufio.NewScanner(os.Stdin)
	for steps.Scan() {
		begin := time.Now()
		err := p.take(steps.Text())
		if text := said.take(); text != "" {
			err = errors.Join(err, fmt.Errorf("the SDK logged: %s", text))
		}
		line := outcome{Client: "go-" + version(), Check: steps.Text(), OK: err == nil, MS: time.Since(begin).Milliseconds()}
		if err != nil {
			line.Error = err.Error()
		}
		if err := out.Encode(line); err != nil {
			os.Exit(1)
		}
	}
}

// take takes one step. The session lives in a context of its own, not in that of the step.
func (p *program) take(step string) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	switch step {
	case "connect":
		return p.connect()
	case "list":
		list, err := p.session.ListTools(ctx, &mcp.ListToolsParams{})
		if err != nil {
			return err
		}
		for _, tool := range list.Tools {
			if tool.Name == "echo" {
				return nil
			}
		}
		return errors.New("no tool echo")
	case "call":
		return p.call(ctx, "echo", map[string]any{"message": "🐭"}, "Echo: 🐭")
	case "slow":
		return p.call(ctx, "trigger-long-running-operation", map[string]any{"duration": 3, "steps": 1}, "completed")
	case "push":
		return p.push(ctx)
	case "close":
		return p.session.Close()
	}
	return fmt.Errorf("there is no step %s", step)
}

func (p *program) connect() (err error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "dormouse-client-go", Version: "1.0.0"}, &mcp.ClientOptions{
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { p.pushed <- struct{}{} },
	})
	p.session, err = client.Connect(context.Background(), p.transport, nil)
	return err
}

func (p *program) push(ctx context.Context) error {
	for len(p.pushed) > 0 {
		<-p.pushed
	}
	if err := p.call(ctx, "push", map[string]any{}, "soon"); err != nil {
		return err
	}
	select {
	case <-p.pushed:
		return nil
	case <-ctx.Done():
		return errors.New("nothing was pushed")
	}
}

func (p *program) call(ctx context.Context, tool string, arguments map[string]any, want string) error {
	result, err := p.session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		return err
	}
	text, ok := result.Content[0].(*mcp.TextContent)
	if !ok || result.IsError || !strings.Contains(text.Text, want) {
		return fmt.Errorf("the tool answered %v", result)
	}
	return nil
}

// version returns the version of the SDK that is really linked.
func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/modelcontextprotocol/go-sdk" {
			return strings.TrimPrefix(module.Version, "v")
		}
	}
	return "unknown"
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// callTimeout limits one call of a plan. A call takes longer the more polls it has.
const callTimeout = 5 * time.Minute

// step is one call of a plan. With Until it ends when a log message with that text
// arrives.
type step struct {
	Check     string         `json:"check"`
	Tool      string         `json:"tool"`
	Arguments map[string]any `json:"arguments"`
	Until     string         `json:"until"`
}

// polled is the result of a step, as one line of output. Logs holds the log messages since
// the last line. Odd is for complaints of the SDK; this SDK never complains.
type polled struct {
	Client   string    `json:"client"`
	Check    string    `json:"check"`
	Text     string    `json:"text,omitempty"`
	Progress []float64 `json:"progress"`
	Logs     []string  `json:"logs"`
	Odd      []string  `json:"odd"`
	Error    string    `json:"error,omitempty"`
}

// poller is the SDK's client while it runs a plan.
type poller struct {
	sdk      *mcp.ClientSession
	logs     chan string
	progress chan float64
}

// runPlan calls the tools of a plan one after the other and prints a line for each. The result is
// the exit code: 0 if every call ended in a result.
func runPlan(ctx context.Context, url, plan string, stdout, stderr io.Writer) int {
	var steps []step
	if err := json.Unmarshal([]byte(plan), &steps); err != nil {
		_, _ = fmt.Fprintln(stderr, "the plan is no list of calls:", err)
		return 2
	}
	p := &poller{logs: make(chan string, 1024), progress: make(chan float64, 1024)}
	if err := p.connect(ctx, url); err != nil {
		_, _ = fmt.Fprintln(stderr, "connect:", err)
		return 1
	}
	code := 0
	for _, s := range steps {
		line := p.run(ctx, s)
		if line.Error != "" {
			code = 1
		}
		if err := json.NewEncoder(stdout).Encode(line); err != nil {
			return 1 // nobody reads the lines any more
		}
	}
	if err := p.sdk.Close(); err != nil {
		_, _ = fmt.Fprintln(stderr, "close:", err)
		return 1
	}
	return code
}

func (p *poller) connect(ctx context.Context, url string) (err error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "dormouse-polls-go", Version: "1.0.0"}, &mcp.ClientOptions{
		//nolint:staticcheck // logging is how the server speaks on the standalone stream, deprecated from 2026-07-28 or not
		LoggingMessageHandler: func(_ context.Context, r *mcp.LoggingMessageRequest) {
			p.logs <- fmt.Sprint(r.Params.Data)
		},
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			p.progress <- r.Params.Progress
		},
	})
	transport := &mcp.StreamableClientTransport{Endpoint: url}
	p.sdk, err = client.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: handshake})
	return err
}

func (p *poller) run(ctx context.Context, s step) polled {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	line := polled{Client: "go-" + sdkVersion(), Check: s.Check}
	if s.Arguments == nil {
		s.Arguments = map[string]any{}
	}
	params := &mcp.CallToolParams{Name: s.Tool, Arguments: s.Arguments}
	params.SetProgressToken(s.Check)
	result, err := p.sdk.CallTool(ctx, params)
	if err != nil {
		line.Error = err.Error()
	} else if len(result.Content) > 0 {
		if text, ok := result.Content[0].(*mcp.TextContent); ok {
			line.Text = text.Text
		}
	}
	for s.Until != "" && line.Error == "" {
		select {
		case log := <-p.logs:
			line.Logs = append(line.Logs, log)
			if log == s.Until {
				s.Until = ""
			}
		case <-ctx.Done():
			line.Error = fmt.Sprintf("no log message %q came: %v", s.Until, ctx.Err())
		}
	}
	line.Logs = append(line.Logs, drain(p.logs)...)
	line.Progress = drain(p.progress)
	return line
}

// drain takes what a queue holds now.
func drain[T any](queue <-chan T) []T {
	var all []T
	for {
		select {
		case v := <-queue:
			all = append(all, v)
		default:
			return all
		}
	}
}

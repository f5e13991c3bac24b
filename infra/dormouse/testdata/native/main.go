// Command native is the program with the native server of the end-to-end tests. The tests
// kill every process and see by it what the store keeps of a session.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/functions/dormouse"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
)

func main() { dormouse.Main(native.Servers{"probe": probe}) }

const resource = "probe://x"

type none struct{}

func probe(_ context.Context, s native.Session) (*mcp.Server, error) {
	options := s.Options()
	options.Capabilities.Resources = &mcp.ResourceCapabilities{Subscribe: true}
	options.Capabilities.Logging = &mcp.LoggingCapabilities{}
	server := mcp.NewServer(&mcp.Implementation{Name: "probe", Version: "1"}, options)
	server.AddResource(&mcp.Resource{Name: "x", URI: resource}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: resource, Text: "x"}}}, nil
	})
	native.AddTool(s, server, &mcp.Tool{Name: "add", Description: "Initialize once, then count"}, answer(s, add))
	native.AddTool(s, server, &mcp.Tool{Name: "who", Description: "Tell of the session, and log at two levels"}, answer(s, who))
	native.AddTool(s, server, &mcp.Tool{Name: "touch", Description: "Change the resource"}, answer(s, touch))
	native.AddTool(s, server, &mcp.Tool{Name: "linger", Description: "Work for a minute"}, answer(s, linger))
	native.AddTool(s, server, &mcp.Tool{Name: "note", Description: "Write a line into a file"}, note)
	return server, nil
}

// line is what note writes, before a pause in milliseconds.
type line struct {
	File  string `json:"file"`
	Tag   string `json:"tag"`
	Pause int    `json:"pause"`
}

func note(_ context.Context, _ *mcp.CallToolRequest, l line) (*mcp.CallToolResult, any, error) {
	f, err := os.OpenFile(l.File, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(l.Tag + "\n")
		err = errors.Join(err, f.Close())
	}
	<-time.After(time.Duration(l.Pause) * time.Millisecond)
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "noted " + l.Tag}}}, nil, err
}

type tool func(ctx context.Context, s native.Session, r *mcp.CallToolRequest) (string, error)

// answer returns a handler that answers with the tool's text.
func answer(s native.Session, t tool) mcp.ToolHandlerFor[none, any] {
	return func(ctx context.Context, r *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, any, error) {
		text, err := t(ctx, s, r)
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, err
	}
}

func increment(n int) (int, error) { return n + 1, nil }

// add returns how often it was called, and how often the session was initialized.
func add(ctx context.Context, s native.Session, _ *mcp.CallToolRequest) (string, error) {
	state := s.State(native.OfSession)
	err := state.Once(ctx, "init", func(ctx context.Context) error {
		select { // long enough for other calls to come
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
		_, err := native.Update(ctx, state, "inits", increment)
		return err
	})
	if err != nil {
		return "", err
	}
	n, err := native.Update(ctx, state, "count", increment)
	if err != nil {
		return "", err
	}
	var inits int
	_, err = state.Load(ctx, "inits", &inits)
	return fmt.Sprintf("%d of %d", n, inits), err
}

func who(ctx context.Context, s native.Session, r *mcp.CallToolRequest) (string, error) {
	for _, level := range []mcp.LoggingLevel{"info", "error"} {
		if err := r.Session.Log(ctx, &mcp.LoggingMessageParams{Level: level, Data: "asked"}); err != nil {
			return "", err
		}
	}
	client := ""
	if c := s.Client(); c != nil {
		client = c.Name
	}
	text, err := json.Marshal(map[string]any{
		"principal": s.Principal(), "props": s.Props(), "client": client, "subscribed": s.Subscribed(),
		"user": r.Extra.TokenInfo.UserID, "header": r.Extra.Header.Get("X-Probe"), "authorization": r.Extra.Header.Get("Authorization"),
	})
	return string(text), err
}

func touch(ctx context.Context, s native.Session, _ *mcp.CallToolRequest) (string, error) {
	return "touched", s.ResourceUpdated(ctx, resource)
}

func linger(ctx context.Context, _ native.Session, _ *mcp.CallToolRequest) (string, error) {
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case <-time.After(time.Minute):
		return "lingered", nil
	}
}

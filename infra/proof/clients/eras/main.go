// Command eras is a stdio server for protocol versions with and without sessions. It has the
// tools, prompts and resources of server-everything that the checks of the clients need. To ask
// a client, a tool answers that it needs input. For a version with sessions, go-sdk turns that
// into a request to the client. The tool push changes the server's tools once the call is over.
//
//	eras dual      speaks all versions of the protocol; the first message decides
//	eras modern    2026-07-28 only: refuses initialize
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const modern = "2026-07-28"

func main() {
	options := &mcp.ServerOptions{}
	if len(os.Args) != 2 || os.Args[1] != "dual" && os.Args[1] != "modern" {
		fmt.Fprintln(os.Stderr, "usage: eras dual|modern")
		os.Exit(2)
	}
	if os.Args[1] == "modern" {
		options.SupportedProtocolVersions = []string{modern}
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "mcp-servers/everything", Version: "2.0.0"}, options)
	if os.Args[1] == "modern" {
		server.AddReceivingMiddleware(refuseInitialize)
	}
	addTools(server)
	addPrompts(server)
	addResources(server)
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// refuseInitialize refuses initialize, which version 2026-07-28 does not have. go-sdk would answer
// it, and leave the refusal to the client.
func refuseInitialize(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if method == "initialize" {
			return nil, &jsonrpc.Error{Code: -32022, Message: "unsupported protocol version", Data: json.RawMessage(`{"supported":["` + modern + `"]}`)}
		}
		return next(ctx, method, req)
	}
}

type handler = func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error)

func addTools(server *mcp.Server) {
	var logs atomic.Bool
	for name, tool := range map[string]struct {
		schema string
		handle handler
	}{
		"echo":                           {`{"message":{"type":"string"}}`, echo},
		"trigger-long-running-operation": {`{"duration":{"type":"number"},"steps":{"type":"number"}}`, work},
		"trigger-sampling-request":       {`{"prompt":{"type":"string"},"maxTokens":{"type":"number"}}`, sample},
		"trigger-elicitation-request":    {`{}`, elicit},
		"get-roots-list":                 {`{}`, roots},
		"push":                           {`{}`, push(server)},
		"toggle-simulated-logging": {`{}`, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return toggle(ctx, req, &logs)
		}},
	} {
		schema := json.RawMessage(`{"type":"object","properties":` + tool.schema + `}`)
		server.AddTool(&mcp.Tool{Name: name, Description: "As server-everything has it.", InputSchema: schema}, tool.handle)
	}
}

func says(format string, args ...any) (*mcp.CallToolResult, error) {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}, nil
}

type arguments struct {
	Message, Prompt string
	Duration        float64 // in seconds
	Steps           int
	MaxTokens       int64
}

func read(req *mcp.CallToolRequest) (a arguments, err error) {
	if len(req.Params.Arguments) == 0 {
		return a, nil
	}
	return a, json.Unmarshal(req.Params.Arguments, &a)
}

func echo(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	a, err := read(req)
	if err != nil {
		return nil, err
	}
	return says("Echo: %s", a.Message)
}

// work is a tool that takes some time, and reports its progress.
func work(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	a, err := read(req)
	if err != nil || a.Steps < 1 {
		return nil, fmt.Errorf("want duration and steps: %w", err)
	}
	step := time.NewTicker(time.Duration(a.Duration / float64(a.Steps) * float64(time.Second)))
	defer step.Stop()
	for i := range a.Steps {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-step.C:
		}
		token := req.Params.GetProgressToken()
		if token == nil {
			continue
		}
		progress := &mcp.ProgressNotificationParams{ProgressToken: token, Progress: float64(i + 1), Total: float64(a.Steps)}
		if err := req.Session.NotifyProgress(ctx, progress); err != nil {
			return nil, err
		}
	}
	return says("Long running operation completed. Duration: %v seconds, Steps: %d.", a.Duration, a.Steps)
}

// answer is the key of the input that the tools ask for.
const answer = "answer"

func needs(input mcp.InputRequest) (*mcp.CallToolResult, error) {
	return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{answer: input}, RequestState: "asked"}, nil
}

//nolint:staticcheck // sampling is what is tested, deprecated from 2026-07-28 or not
func sample(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	a, err := read(req)
	if err != nil {
		return nil, err
	}
	given, ok := req.Params.InputResponses[answer]
	if !ok {
		text := &mcp.TextContent{Text: "Resource trigger-sampling-request context: " + a.Prompt}
		return needs(&mcp.CreateMessageParams{Messages: []*mcp.SamplingMessage{{Role: "user", Content: text}}, MaxTokens: a.MaxTokens})
	}
	result, ok := given.(*mcp.CreateMessageWithToolsResult)
	if !ok || len(result.Content) != 1 {
		return nil, fmt.Errorf("the client answered with %T", given)
	}
	shown, err := json.Marshal(map[string]any{"model": result.Model, "content": result.Content[0]})
	if err != nil {
		return nil, err
	}
	return says("LLM sampling result: %s", shown)
}

func elicit(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	given, ok := req.Params.InputResponses[answer]
	if !ok {
		return needs(&mcp.ElicitParams{Message: "Who are you?", RequestedSchema: &jsonschema.Schema{
			Type: "object",
			Properties: map[string]*jsonschema.Schema{
				"name": {Type: "string"}, "check": {Type: "boolean"}, "integer": {Type: "integer"},
			},
			Required: []string{"name"},
		}})
	}
	result, ok := given.(*mcp.ElicitResult)
	if !ok {
		return nil, fmt.Errorf("the client answered with %T", given)
	}
	if result.Action != "accept" {
		return says("The user has not accepted: %s", result.Action)
	}
	return says("- Name: %v\n- Agreed to terms: %v\n- Favorite Integer: %v", result.Content["name"], result.Content["check"], result.Content["integer"])
}

//nolint:staticcheck // roots are what is tested, deprecated from 2026-07-28 or not
func roots(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	given, ok := req.Params.InputResponses[answer]
	if !ok {
		return needs(&mcp.ListRootsParams{})
	}
	result, ok := given.(*mcp.ListRootsResult)
	if !ok {
		return nil, fmt.Errorf("the client answered with %T", given)
	}
	var lines []string
	for i, root := range result.Roots {
		lines = append(lines, fmt.Sprintf("%d. %s\n   URI: %s", i+1, root.Name, root.URI))
	}
	return says("%s", strings.Join(lines, "\n"))
}

// toggle turns logging on or off. It writes its one log line during the call that turns it on,
// because in version 2026-07-28 a server has no log lines outside of requests.
//
//nolint:staticcheck // logging is what is tested, deprecated from 2026-07-28 or not
func toggle(ctx context.Context, req *mcp.CallToolRequest, on *atomic.Bool) (*mcp.CallToolResult, error) {
	if on.Swap(!on.Load()) {
		return says("Stopped simulated logging")
	}
	if err := req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Data: "Info-level message"}); err != nil {
		return nil, err
	}
	return says("Started simulated logging")
}

// pushDelay is the time from the answer of the tool push to the change of the tools. By then the answer
// has left, and the server is still awake.
const pushDelay = 300 * time.Millisecond

// push returns a tool that adds a tool to the server some time after its answer, when no request of
// the client is under way.
func push(server *mcp.Server) handler {
	return func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		time.AfterFunc(pushDelay, func() {
			server.AddTool(&mcp.Tool{Name: "pushed", InputSchema: json.RawMessage(`{"type":"object"}`)}, echo)
		})
		return says("soon")
	}
}

func addPrompts(server *mcp.Server) {
	for _, name := range []string{"simple-prompt", "args-prompt", "completable-prompt", "resource-prompt"} {
		server.AddPrompt(&mcp.Prompt{Name: name}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: name}}}}, nil
		})
	}
}

func addResources(server *mcp.Server) {
	text := func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: req.Params.URI, MIMEType: "text/plain", Text: "text"}}}, nil
	}
	server.AddResource(&mcp.Resource{Name: "architecture.md", URI: "demo://resource/static/document/architecture.md"}, text)
	server.AddResourceTemplate(&mcp.ResourceTemplate{Name: "text", URITemplate: "demo://resource/dynamic/text/{resourceId}"}, text)
}

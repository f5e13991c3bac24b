// Command modern is an MCP server over stdio that speaks only 2026-07-28: it refuses
// initialize. Its tools ask the client for input in one and in two rounds, and note
// each run.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	calls := flag.String("calls", "", "`file` that gets a line for each run of a tool")
	flag.Parse()
	s := mcp.NewServer(&mcp.Implementation{Name: "modern", Version: "1"}, &mcp.ServerOptions{Instructions: "ask me"})
	s.AddReceivingMiddleware(refuse)
	mcp.AddTool(s, &mcp.Tool{Name: "book", Description: "needs a name, then a yes"}, func(_ context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		note(*calls, fmt.Sprintf("book %q", r.Params.RequestState))
		return book(r)
	})
	mcp.AddTool(s, &mcp.Tool{Name: "plan", Description: "thinks, then needs a name"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		note(*calls, fmt.Sprintf("plan %q", r.Params.RequestState))
		if r.Params.RequestState == "" {
			select {
			case <-ctx.Done():
				return nil, nil, ctx.Err()
			case <-time.After(2 * time.Second):
			}
		}
		return book(r)
	})
	if err := s.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		log.Fatal(err)
	}
}

// refuse refuses initialize, which makes this server modern only.
func refuse(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
		if method == "initialize" {
			data, err := json.Marshal(map[string]any{"supported": []string{"2026-07-28"}, "requested": "?"})
			if err != nil {
				return nil, err
			}
			return nil, &jsonrpc.Error{Code: -32022, Message: "unsupported protocol version", Data: data}
		}
		return next(ctx, method, r)
	}
}

// book asks for the name, and then whether it is right.
func book(r *mcp.CallToolRequest) (*mcp.CallToolResult, any, error) {
	asks := func(message, property, kind, state string) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{RequestState: state, InputRequests: mcp.InputRequestMap{property: &mcp.ElicitParams{
			Message: message,
			RequestedSchema: &jsonschema.Schema{
				Type: "object", Properties: map[string]*jsonschema.Schema{property: {Type: kind}}, Required: []string{property},
			},
		}}}, nil, nil
	}
	given := func(property string) (any, bool) {
		answer, ok := r.Params.InputResponses[property].(*mcp.ElicitResult)
		if !ok || answer.Action != "accept" {
			return nil, false
		}
		return answer.Content[property], true
	}
	switch state := r.Params.RequestState; {
	case state == "":
		return asks("Who is it for?", "name", "string", "named")
	case state == "named":
		name, ok := given("name")
		if !ok {
			return text("not booked"), nil, nil
		}
		return asks(fmt.Sprintf("Is %v right?", name), "right", "boolean", "right for "+fmt.Sprint(name))
	default:
		right, _ := given("right")
		return text(fmt.Sprintf("booked: %s, %v", state, right)), nil, nil
	}
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

// note adds a line to a file.
func note(file, line string) {
	if file == "" {
		return
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(f, line)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		log.Fatal(err)
	}
}

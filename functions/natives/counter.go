package main

import (
	"context"
	"strconv"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
)

// counter counts the calls of each session. The counter is in the store, because each message may
// be served by a new process.
func counter(_ context.Context, s native.Session) (*mcp.Server, error) {
	server := mcp.NewServer(&mcp.Implementation{Name: "counter", Version: "1"}, s.Options())
	type args struct {
		By int `json:"by,omitempty" jsonschema:"how much to add, 1 if it is left out"`
	}
	native.AddTool(s, server, &mcp.Tool{Name: "add", Description: "Add to the counter of this session, and tell its value"},
		func(ctx context.Context, _ *mcp.CallToolRequest, in args) (*mcp.CallToolResult, any, error) {
			n, err := native.Update(ctx, s.State(native.OfSession), "count", func(n int) (int, error) {
				if in.By == 0 {
					return n + 1, nil
				}
				return n + in.By, nil
			})
			if err != nil {
				return nil, nil, err
			}
			return says(strconv.Itoa(n)), nil, nil
		})
	return server, nil
}

func says(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

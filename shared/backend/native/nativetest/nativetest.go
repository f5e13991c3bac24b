// Package nativetest has a native server for tests.
package nativetest

import (
	"context"
	"strconv"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
)

// Servers returns a server with the name "counter". Its tool "add" keeps a count for each session.
func Servers() native.Servers {
	return native.Servers{"counter": func(_ context.Context, s native.Session) (*mcp.Server, error) {
		server := mcp.NewServer(&mcp.Implementation{Name: "counter", Version: "1"}, s.Options())
		type args struct {
			By int `json:"by,omitempty" jsonschema:"how much to add, 1 if it is left out"`
		}
		native.AddTool(s, server, &mcp.Tool{Name: "add", Description: "Add to the counter of this session, and tell its value"},
			func(ctx context.Context, _ *mcp.CallToolRequest, in args) (*mcp.CallToolResult, any, error) {
				n, err := native.Update(ctx, s.State(native.OfSession), "count", func(n int) (int, error) { return n + max(in.By, 1), nil })
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strconv.Itoa(n)}}}, nil, err
			})
		return server, nil
	}}
}

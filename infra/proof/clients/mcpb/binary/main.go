// Command binary is the server of an MCP bundle. Its tool returns the arguments of the process and two
// environment variables.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	server := mcp.NewServer(&mcp.Implementation{Name: "gopher", Version: "2.0.0"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "given"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		text, err := json.Marshal(append([]string{os.Getenv("PASSWORD"), os.Getenv("LOUD")}, os.Args[1:]...))
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(text)}}}, nil, err
	})
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

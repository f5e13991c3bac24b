// Command native is the program with the native server of the end-to-end tests. The tests
// kill every process and see by it what the store keeps of a session.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/functions/dormouse"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
)

func main() { dormouse.Main(native.Servers{"probe": probe}) }

func probe(_ context.Context, s native.Session) (*mcp.Server, error) {
	server := mcp.NewServer(&mcp.Implementation{Name: "probe", Version: "1"}, s.Options())
	native.AddTool(s, server, &mcp.Tool{Name: "count", Description: "Count the calls of the session"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		n, err := native.Update(ctx, s.State(native.OfSession), "count", func(n int) (int, error) { return n + 1, nil })
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint(n)}}}, nil, err
	})
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

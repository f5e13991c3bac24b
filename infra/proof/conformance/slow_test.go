//go:build conformance

package conformance

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// slowServer as the first argument makes this test's program a stdio server.
	slowServer = "slow-server"
	// slowness is longer than the suite reads a response (10 s). It is shorter than that
	// time plus the time for which the suite then polls (5 s).
	slowness = 12 * time.Second
)

func TestMain(m *testing.M) {
	if len(os.Args) < 2 {
		os.Exit(m.Run())
	}
	var err error
	switch os.Args[1] {
	case slowServer:
		err = serveSlowly(context.Background())
	case modernOnlyServer:
		err = serveModernOnly(context.Background(), os.Args[2:])
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serveSlowly serves the one tool that the polling scenario calls. It ends when stdin
// ends.
func serveSlowly(ctx context.Context) error {
	server := mcp.NewServer(&mcp.Implementation{Name: "slow", Version: "1.0.0"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "test_reconnection", Description: "Answers late."},
		func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
			select {
			case <-ctx.Done():
				return nil, nil, ctx.Err()
			case <-time.After(slowness):
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "late, but here"}}}, nil, nil
		})
	return server.Run(ctx, &mcp.StdioTransport{})
}

// Command echo is the MCP server behind every host in the benchmark. Its tools do almost
// nothing, and it is built with the official go-sdk. Over stdio it is the hosted server.
// With -http it serves the same tools itself and stays running. That is the cheapest way
// to host them, for comparison.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// own is the prefix in the names of the 20 additional tools. If it is "", there are none.
var own string

func main() {
	listen := flag.String("http", "", "serve Streamable HTTP at this `address` instead of stdio")
	store := flag.Bool("event-store", false, "with -http: keep events in memory, for clients that come back")
	flag.StringVar(&own, "tools", "", "have 20 more tools, whose names begin with this `name`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *listen == "" {
		err = server().Run(ctx, &mcp.StdioTransport{})
	} else {
		options := &mcp.StreamableHTTPOptions{}
		if *store {
			options.EventStore = mcp.NewMemoryEventStore(nil)
		}
		err = serve(ctx, *listen, options)
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, address string, options *mcp.StreamableHTTPOptions) error {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/mcp", mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server() }, options))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = s.Close() }) // an error does not matter: the process ends
	return s.Serve(listener)
}

type (
	said struct {
		Message string `json:"message" jsonschema:"what to say back"`
	}
	slowed struct {
		Milliseconds int  `json:"milliseconds" jsonschema:"how long to take"`
		Progress     bool `json:"progress,omitempty" jsonschema:"report progress once, at the start"`
	}
)

// server returns the server with the tools of the benchmark. The tool echo answers as that of the
// reference server (server-everything) does.
func server() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "echo", Version: "1.0.0"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "echo", Description: "Say it back"}, func(_ context.Context, _ *mcp.CallToolRequest, in said) (*mcp.CallToolResult, any, error) {
		return text("Echo: " + in.Message), nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "slow", Description: "Answer late"}, slow)
	for i := range 20 {
		if own != "" {
			mcp.AddTool(s, &mcp.Tool{Name: own + "_" + strconv.Itoa(i), Description: "Say it back, as one of many tools"}, func(_ context.Context, _ *mcp.CallToolRequest, in said) (*mcp.CallToolResult, any, error) {
				return text("Echo: " + in.Message), nil, nil
			})
		}
	}
	return s
}

func slow(ctx context.Context, r *mcp.CallToolRequest, in slowed) (*mcp.CallToolResult, any, error) {
	if token := r.Params.GetProgressToken(); in.Progress && token != nil {
		if err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: 1}); err != nil {
			return nil, nil, err
		}
	}
	select {
	case <-time.After(time.Duration(in.Milliseconds) * time.Millisecond):
		return text("Echo: slow"), nil, nil
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

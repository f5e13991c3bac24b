package main

import (
	"context"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
)

// before is how long a tool works before it fails or asks the client. By then the host must have
// turned the call into an MCP task.
const before = 1500 * time.Millisecond

// asleepFrom is the shortest time for which compute sets an alarm that continues the call, and does not
// wait.
const asleepFrom = 30 * time.Second

func tasks(_ context.Context, s native.Session) (*mcp.Server, error) {
	server := mcp.NewServer(&mcp.Implementation{Name: "tasks", Version: "1.0.0"}, s.Options())
	t := tools{s, server}
	add := func(name string, support native.TaskSupport, h handler) {
		t.tool(native.AsTask(&mcp.Tool{Name: name}, support), h)
	}
	t.add("greet", func(_ context.Context, _ *mcp.CallToolRequest, in given) (*mcp.CallToolResult, error) {
		return result("Hello, %v!", in["name"]), nil
	})
	add("slow_compute", native.TaskOptional, compute)
	add("failing_job", native.TaskRequired, func(ctx context.Context, _ *mcp.CallToolRequest, _ given) (*mcp.CallToolResult, error) {
		if err := pause(ctx, before); err != nil {
			return nil, err
		}
		failed := result("The job failed, as it should.")
		failed.IsError = true
		return failed, nil
	})
	add("protocol_error_job", native.TaskOptional, func(ctx context.Context, _ *mcp.CallToolRequest, _ given) (*mcp.CallToolResult, error) {
		if err := pause(ctx, before); err != nil {
			return nil, err
		}
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the job broke"}
	})
	confirm, name := field("Please confirm", "confirm", "boolean"), field("What is your name?", "name", "string")
	add("confirm_delete", native.TaskOptional, late(mcp.InputRequestMap{"confirm": confirm}))
	add("multi_input", native.TaskOptional, late(mcp.InputRequestMap{"confirm": confirm, "name": name}))
	add("test_tool_with_task", native.TaskRequired, func(ctx context.Context, req *mcp.CallToolRequest, _ given) (*mcp.CallToolResult, error) {
		user, ok := answer(req.Params.InputResponses, "user_name")
		if !ok {
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"user_name": name}}, nil
		}
		if err := pause(ctx, before); err != nil {
			return nil, err
		}
		return result("You are %s", user), nil
	})
	return server, nil
}

// compute takes as many seconds as its argument says.
func compute(ctx context.Context, req *mcp.CallToolRequest, in given) (*mcp.CallToolResult, error) {
	seconds, _ := in["seconds"].(float64)
	takes := time.Duration(seconds * float64(time.Second))
	if takes >= asleepFrom && req.Params.RequestState == "" {
		return native.Later(time.Now().Add(takes), "slept"), nil
	}
	if takes < asleepFrom {
		if err := pause(ctx, takes); err != nil {
			return nil, err
		}
	}
	return result("%v: computed.", in["label"]), nil
}

// late returns a tool that asks its questions after it has worked for some time.
func late(questions mcp.InputRequestMap) handler {
	return func(ctx context.Context, req *mcp.CallToolRequest, in given) (*mcp.CallToolResult, error) {
		if len(req.Params.InputResponses) == 0 {
			if err := pause(ctx, before); err != nil {
				return nil, err
			}
		}
		return asks(questions)(ctx, req, in)
	}
}

package main

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
)

// booking asks the user before it books. Its tool returns the question, and is called again with
// the answer, perhaps in another process. No process runs while the user thinks, however long that
// takes.
func booking(_ context.Context, s native.Session) (*mcp.Server, error) {
	server := mcp.NewServer(&mcp.Implementation{Name: "booking", Version: "1"}, s.Options())
	type args struct {
		Trip string `json:"trip" jsonschema:"where to"`
	}
	native.AddTool(s, server, &mcp.Tool{Name: "book", Description: "Book a trip, once the user has agreed to it"},
		func(_ context.Context, r *mcp.CallToolRequest, in args) (*mcp.CallToolResult, any, error) {
			answer, ok := r.Params.InputResponses["agree"].(*mcp.ElicitResult)
			switch {
			case !ok:
				return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"agree": &mcp.ElicitParams{
					Mode: "form", Message: "Book the trip to " + in.Trip + "?",
					RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{
						"seats": map[string]any{"type": "integer", "title": "Seats", "minimum": 1},
					}},
				}}}, nil, nil
			case answer.Action != "accept":
				return says("not booked: the user did not agree"), nil, nil
			default:
				return says("booked: " + in.Trip), nil, nil
			}
		})
	return server, nil
}

package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
)

// job works in steps and reports its progress to the client. An alarm starts each step after the
// first. No process runs between the steps.
func job(_ context.Context, s native.Session) (*mcp.Server, error) {
	server := mcp.NewServer(&mcp.Implementation{Name: "job", Version: "1"}, s.Options())
	type args struct {
		Steps   int `json:"steps" jsonschema:"how many, 1 to 100"`
		Seconds int `json:"seconds" jsonschema:"the pause between two of them"`
	}
	native.AddTool(s, server, &mcp.Tool{Name: "work", Description: "Work in steps, with a pause between two of them"},
		func(ctx context.Context, r *mcp.CallToolRequest, in args) (*mcp.CallToolResult, any, error) {
			if in.Steps < 1 || in.Steps > 100 || in.Seconds < 0 {
				return nil, nil, fmt.Errorf("steps must be 1 to 100 and seconds not below 0, not %d and %d", in.Steps, in.Seconds)
			}
			done := 0
			if r.Params.RequestState != "" { // only this server writes the state, so it is a number
				done, _ = strconv.Atoi(r.Params.RequestState)
			}
			done++
			if token := r.Params.GetProgressToken(); token != nil {
				err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
					ProgressToken: token, Progress: float64(done), Total: float64(in.Steps), Message: "step " + strconv.Itoa(done),
				})
				if err != nil {
					return nil, nil, err
				}
			}
			if done < in.Steps {
				return native.Later(time.Now().Add(time.Duration(in.Seconds)*time.Second), strconv.Itoa(done)), nil, nil
			}
			return says("worked " + strconv.Itoa(done) + " steps"), nil, nil
		})
	return server, nil
}

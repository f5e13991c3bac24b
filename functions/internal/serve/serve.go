// Package serve runs the two functions that execute native servers: http and socket. They read the
// environment variables that all functions have; see template.yaml.
package serve

import (
	"context"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/functions/internal/alarms"
	"github.com/dormouse-mcp/dormouse/functions/internal/boot"
	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/functions/wiring/endpoints"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/apigateway"
)

// event is an event of the HTTP function: a request from the REST API, or an alarm of a native
// server. A client cannot forge an alarm, because everything that a client sends is inside the
// request.
type event struct {
	events.APIGatewayProxyRequest
	Alarm *native.Alarm `json:"dormouseAlarm"`
}

// HTTP runs the function behind the REST API. An alarm invokes the same function.
func HTTP(servers native.Servers) {
	boot.Serve(func(f *wiring.Function) (func(context.Context, event) (*events.APIGatewayProxyStreamingResponse, error), error) {
		a, err := alarms.Open()
		if err != nil {
			return nil, err
		}
		h, err := endpoints.NewHTTP(f, servers, a, nil, nil)
		if err != nil {
			return nil, err
		}
		serve := apigateway.HTTP(h.Handler, f.Log)
		return func(ctx context.Context, e event) (*events.APIGatewayProxyStreamingResponse, error) {
			if e.Alarm != nil {
				return &events.APIGatewayProxyStreamingResponse{}, h.Alarm(ctx, *e.Alarm)
			}
			return serve(ctx, e.APIGatewayProxyRequest)
		}, nil
	})
}

// Socket runs the function behind the WebSocket API for clients.
func Socket(servers native.Servers) {
	boot.Serve(func(f *wiring.Function) (func(context.Context, apigateway.SocketEvent) (events.APIGatewayProxyResponse, error), error) {
		a, err := alarms.Open()
		if err != nil {
			return nil, err
		}
		// API Gateway delivers nothing to a new connection until the invocation for $connect has
		// ended. So another invocation pushes the stored messages.
		s, err := endpoints.NewSocket(f, servers, a, func(ctx context.Context, id storage.ID) error {
			payload, err := apigateway.PushEvent(id)
			if err != nil {
				return err
			}
			return boot.InvokeSelf(ctx, payload)
		}, nil)
		if err != nil {
			return nil, err
		}
		serve := apigateway.Socket(s)
		return func(ctx context.Context, e apigateway.SocketEvent) (events.APIGatewayProxyResponse, error) {
			return native.Stay(ctx, func(ctx context.Context) (events.APIGatewayProxyResponse, error) { return serve(ctx, e) })
		}, nil
	})
}

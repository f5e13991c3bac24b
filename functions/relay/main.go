// Command relay is the Lambda function behind the WebSocket API for runners.
package main

import (
	"context"
	"net/http"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/functions/internal/boot"
	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

type (
	event  = events.APIGatewayWebsocketProxyRequest
	answer = events.APIGatewayProxyResponse
)

func main() {
	boot.Serve(func(f *wiring.Function) (func(context.Context, event) (answer, error), error) {
		c := f.RelayWithBucket()
		c.Resolve = boot.Resolver(f)
		h := relayserver.NewHandler(c)
		return func(ctx context.Context, e event) (answer, error) {
			if e.RequestContext.RouteKey == "$connect" && f.Relay.Sealer.Admit(headers(e)) != nil {
				return answer{StatusCode: 401}, nil
			}
			// A runner has passed Admit on $connect, and its first message proves which box it is.
			// $disconnect changes nothing, because the runner may connect again.
			if e.RequestContext.RouteKey != "$default" {
				return answer{StatusCode: 200}, nil
			}
			ctx = storage.WithTrace(ctx, e.RequestContext.RequestID)
			reply, err := h.Frame(ctx, e.RequestContext.ConnectionID, []byte(e.Body))
			if err != nil {
				return answer{StatusCode: 500}, nil
			}
			return answer{StatusCode: 200, Body: string(reply)}, nil
		}, nil
	})
}

func headers(e event) http.Header {
	h := http.Header{}
	for name, value := range e.Headers {
		h.Set(name, value)
	}
	return h
}

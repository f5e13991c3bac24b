// Command relay is the Lambda function behind the WebSocket API for runners.
package main

import (
	"context"
	"net/http"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/functions/internal/boot"
	"github.com/dormouse-mcp/dormouse/shared/relay/relayhost"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

func main() {
	f, err := boot.Open()
	if err != nil {
		boot.Fail(err)
	}
	h := relayhost.NewHandler(f.RelayWithBucket())
	boot.Start(func(ctx context.Context, e events.APIGatewayWebsocketProxyRequest) (events.APIGatewayProxyResponse, error) {
		if e.RequestContext.RouteKey == "$connect" && f.Relay.Sealer.Admit(headers(e)) != nil {
			return events.APIGatewayProxyResponse{StatusCode: 401}, nil
		}
		// $connect proves nothing about the owner of a connection, and $disconnect is only
		// a hint. The hello names the owner.
		if e.RequestContext.RouteKey != "$default" {
			return events.APIGatewayProxyResponse{StatusCode: 200}, nil
		}
		ctx = session.WithTrace(ctx, e.RequestContext.RequestID)
		reply, err := h.Frame(ctx, e.RequestContext.ConnectionID, []byte(e.Body))
		if err != nil {
			return events.APIGatewayProxyResponse{StatusCode: 500}, nil
		}
		return events.APIGatewayProxyResponse{StatusCode: 200, Body: string(reply)}, nil
	})
}

func headers(e events.APIGatewayWebsocketProxyRequest) http.Header {
	h := http.Header{}
	for name, value := range e.Headers {
		h.Set(name, value)
	}
	return h
}

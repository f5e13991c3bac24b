// Command relay is the Lambda function behind the WebSocket API for runners.
package main

import (
	"context"
	"encoding/json"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/functions/internal/boot"
	"github.com/dormouse-mcp/dormouse/shared/relay"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

func main() {
	f, err := boot.Open()
	if err != nil {
		boot.Fail(err)
	}
	h := relay.NewHandler(f.RelayWithBucket())
	boot.Start(func(ctx context.Context, e message) (events.APIGatewayProxyResponse, error) {
		if e.route == "$connect" && f.Relay.Sealer.Admit(json.RawMessage(e.headers)) != nil {
			return events.APIGatewayProxyResponse{StatusCode: 401}, nil
		}
		// The rest of $connect proves nothing and $disconnect is a hint at most: who a
		// connection belongs to is said by its hello.
		if e.route != "$default" {
			return events.APIGatewayProxyResponse{StatusCode: 200}, nil
		}
		ctx = session.WithTrace(ctx, e.request)
		reply, err := h.Frame(ctx, e.connection, []byte(e.body))
		if err != nil {
			return events.APIGatewayProxyResponse{StatusCode: 500}, nil
		}
		return events.APIGatewayProxyResponse{StatusCode: 200, Body: string(reply)}, nil
	})
}

// message is the part of an event of the WebSocket API that is looked at.
type message struct{ route, request, connection, body, headers string }

// UnmarshalJSON decodes valid JSON.
func (m *message) UnmarshalJSON(raw []byte) error {
	wire.Members(raw, func(key string, value json.RawMessage) bool {
		switch key {
		case "body":
			m.body, _ = wire.String(value) // null is none
		case "headers":
			m.headers = string(value)
		case "requestContext":
			m.route, _ = wire.String(wire.Lookup(value, "routeKey"))
			m.request, _ = wire.String(wire.Lookup(value, "requestId"))
			m.connection, _ = wire.String(wire.Lookup(value, "connectionId"))
		}
		return true
	})
	return nil
}

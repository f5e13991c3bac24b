package apigateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
)

// The routes of a WebSocket API.
const (
	routeConnect    = "$connect"
	routeDisconnect = "$disconnect"
)

// SocketEvent is the event that invokes the function behind a WebSocket API: an event of the API,
// or the function's own request to push to a session ([PushEvent]).
type SocketEvent struct {
	events.APIGatewayWebsocketProxyRequest
	Push *pushEvent `json:"dormousePush"`
}

type pushEvent struct {
	Session storage.ID `json:"session"`
}

// PushEvent returns the payload of an invocation that pushes to a session its undelivered events.
// No client can send this payload: API Gateway wraps clients' messages in events of its own.
func PushEvent(id storage.ID) ([]byte, error) {
	return json.Marshal(map[string]pushEvent{"dormousePush": {id}})
}

// Socket returns the function behind a WebSocket API, which passes each event to k. The function
// returns an error only if a push fails, so that Lambda repeats the invocation.
func Socket(k *transport.Socket) func(context.Context, SocketEvent) (events.APIGatewayProxyResponse, error) {
	return func(ctx context.Context, e SocketEvent) (events.APIGatewayProxyResponse, error) {
		conn := e.RequestContext.ConnectionID
		ctx = storage.WithAddress(storage.WithTrace(ctx, e.RequestContext.RequestID), e.RequestContext.Identity.SourceIP)
		res := events.APIGatewayProxyResponse{StatusCode: http.StatusOK}
		if e.Push != nil {
			return res, k.Push(ctx, e.Push.Session)
		}
		switch e.RequestContext.RouteKey {
		case routeConnect:
			r, err := upgrade(ctx, e.APIGatewayWebsocketProxyRequest)
			if err != nil {
				res.StatusCode = http.StatusBadRequest
				return res, nil
			}
			status, protocol, body := k.Connect(ctx, conn, r)
			res.StatusCode, res.Body = status, string(body)
			if protocol != "" {
				res.Headers = map[string]string{"Sec-WebSocket-Protocol": protocol}
			}
		case routeDisconnect:
			k.Disconnect(ctx, conn)
		default:
			res.Body = string(k.Message(ctx, conn, []byte(e.Body)))
		}
		return res, nil
	}
}

// upgrade returns the HTTP request with which a client asked for a connection.
func upgrade(ctx context.Context, e events.APIGatewayWebsocketProxyRequest) (*http.Request, error) {
	query := url.Values(e.MultiValueQueryStringParameters)
	if len(query) == 0 {
		query = url.Values{}
		for name, value := range e.QueryStringParameters {
			query.Set(name, value)
		}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/?"+query.Encode(), nil)
	if err != nil {
		return nil, fmt.Errorf("event is no http request: %w", err)
	}
	for name, values := range e.MultiValueHeaders {
		for _, value := range values {
			r.Header.Add(name, value)
		}
	}
	complete(r, e.Headers, e.RequestContext.DomainName)
	return r, nil
}

package front

import (
	"container/list"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// The routes of a WebSocket API.
const (
	routeConnect    = "$connect"
	routeDisconnect = "$disconnect"
)

// SocketEvent is what the function behind a WebSocket API is invoked with: an
// event of the API, or the function's own word to itself to push ([PushEvent]).
type SocketEvent struct {
	events.APIGatewayWebsocketProxyRequest
	Push *pushEvent `json:"dormousePush"`
}

type pushEvent struct {
	Session session.ID `json:"session"`
}

// PushEvent is the payload of an invocation that pushes what a session is owed.
// Only who may invoke the function can send it: what a client sends is inside of
// an event of the API.
func PushEvent(id session.ID) ([]byte, error) {
	return json.Marshal(map[string]pushEvent{"dormousePush": {id}})
}

// Lambda serves the function behind a WebSocket API. An error asks for the
// invocation to be repeated, which only one to push ever is.
func (k *Socket) Lambda(ctx context.Context, e SocketEvent) (events.APIGatewayProxyResponse, error) {
	conn := e.RequestContext.ConnectionID
	ctx = session.WithTrace(ctx, e.RequestContext.RequestID)
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

// upgrade is the request a connection was asked for with.
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
	for name, value := range e.Headers {
		if r.Header.Get(name) == "" {
			r.Header.Set(name, value)
		}
	}
	if r.Host = r.Header.Get("Host"); r.Host == "" {
		r.Host = e.RequestContext.DomainName
	}
	r.Header.Del("Host")
	return r, nil
}

// mostConnections is how many records of connections an instance remembers.
const mostConnections = 1000

// connections remembers records of connections, which never change: the ones used
// last.
type connections struct {
	mu    sync.Mutex
	order *list.List // of session.Connection, last used in front
	by    map[string]*list.Element
}

func newConnections() *connections {
	return &connections{order: list.New(), by: map[string]*list.Element{}}
}

func (k *connections) get(id string, now time.Time) (session.Connection, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e, ok := k.by[id]
	if !ok {
		return session.Connection{}, false
	}
	c := e.Value.(session.Connection)
	if !c.Expires.After(now) {
		return session.Connection{}, false
	}
	k.order.MoveToFront(e)
	return c, true
}

func (k *connections) put(c session.Connection) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.by[c.ID]; ok {
		return
	}
	k.by[c.ID] = k.order.PushFront(c)
	if k.order.Len() > mostConnections {
		oldest := k.order.Back()
		k.order.Remove(oldest)
		delete(k.by, oldest.Value.(session.Connection).ID)
	}
}

func (k *connections) forget(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e, ok := k.by[id]; ok {
		k.order.Remove(e)
		delete(k.by, id)
	}
}

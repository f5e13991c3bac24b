package local

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

const (
	// maxRouteAnswer is Lambda's limit for a synchronous answer.
	maxRouteAnswer = 6 << 20
	requestTime    = "02/Jan/2006:15:04:05 -0700"

	textInternal = "Internal server error"
	textTimeout  = "Endpoint request timed out"
)

// newGatewayID makes an id as API Gateway gives them to connections, requests and
// messages: 16 characters, the last of which is "=".
func newGatewayID() string {
	b := make([]byte, 11)
	_, _ = rand.Read(b) // never fails, see crypto/rand
	return base64.URLEncoding.EncodeToString(b)
}

func isGatewayID(id string) bool {
	b, err := base64.URLEncoding.DecodeString(id)
	return err == nil && len(b) == 11
}

func (c *wsConn) event(route, kind string) *events.APIGatewayWebsocketProxyRequest {
	now, id := time.Now(), newGatewayID()
	return &events.APIGatewayWebsocketProxyRequest{
		RequestContext: events.APIGatewayWebsocketProxyRequestContext{
			RouteKey: route, EventType: kind, MessageDirection: "IN",
			Stage: c.api.cfg.Stage, APIID: c.api.cfg.Name, DomainName: c.host,
			ConnectionID: c.id, ConnectedAt: c.connectedAt.UnixMilli(),
			RequestID: id, ExtendedRequestID: id,
			RequestTime: now.UTC().Format(requestTime), RequestTimeEpoch: now.UnixMilli(),
			Identity: events.APIGatewayRequestIdentity{SourceIP: c.sourceIP, UserAgent: c.userAgent},
		},
	}
}

// connectEvent is the only one that brings the client's headers and query.
func (c *wsConn) connectEvent(r *http.Request) *events.APIGatewayWebsocketProxyRequest {
	e := c.event("$connect", "CONNECT")
	h := requestHeaders(r, c.connectedAt)
	e.MultiValueHeaders, e.Headers = h, lastOfEach(h)
	if q := r.URL.Query(); len(q) > 0 {
		e.MultiValueQueryStringParameters, e.QueryStringParameters = q, lastOfEach(q)
	}
	return e
}

func (c *wsConn) messageEvent(data []byte) *events.APIGatewayWebsocketProxyRequest {
	e := c.event("$default", "MESSAGE")
	e.RequestContext.MessageID = newGatewayID()
	e.Body = string(data)
	return e
}

func (c *wsConn) disconnectEvent(end closing) *events.APIGatewayWebsocketProxyRequest {
	e := c.event("$disconnect", "DISCONNECT")
	// What the real one has instead of the client's headers.
	e.Headers = map[string]string{"Host": c.host, "x-api-key": "", "X-Forwarded-For": "", "x-restapi": ""}
	e.MultiValueHeaders = map[string][]string{"Host": {c.host}, "x-api-key": {""}, "X-Forwarded-For": {""}, "x-restapi": {""}}
	e.RequestContext.DisconnectStatusCode = int64(end.code)
	e.RequestContext.DisconnectReason = &end.reason
	return e
}

func lastOfEach(all map[string][]string) map[string]string {
	m := make(map[string]string, len(all))
	for k, v := range all {
		m[k] = v[len(v)-1]
	}
	return m
}

// sourceIP is the address the request came from; on a unix socket that is nobody's
// but this machine's.
func sourceIP(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return "127.0.0.1"
	}
	return host
}

// routeAnswer is what the function answers for a route, in Lambda proxy form.
type routeAnswer events.APIGatewayProxyResponse

// header returns the last value of a header, whatever its case.
func (a routeAnswer) header(name string) string {
	for k, v := range a.MultiValueHeaders {
		if strings.EqualFold(k, name) && len(v) > 0 {
			return v[len(v)-1]
		}
	}
	for k, v := range a.Headers {
		if strings.EqualFold(k, name) {
			return v
		}
	}
	return ""
}

func (a routeAnswer) ok() bool { return a.StatusCode >= 200 && a.StatusCode <= 299 }

// invoke runs one route and reads its whole answer. It returns
// context.DeadlineExceeded when the function did not answer within the integration
// timeout; the function runs on.
func (a *WebSocketAPI) invoke(event *events.APIGatewayWebsocketProxyRequest) (routeAnswer, error) {
	payload := marshalSocketEvent(event)
	ctx, cancel := context.WithTimeout(a.ctx, a.limits.Integration)
	defer cancel()
	inv, err := a.cfg.Invoker.Invoke(ctx, a.cfg.Function, payload)
	if err == nil || ctx.Err() != nil {
		a.meter(func(u *WebSocketUsage) { u.Invocations++ })
	}
	if err != nil {
		return routeAnswer{}, err
	}
	stop := context.AfterFunc(ctx, func() { _ = inv.Body.Close() })
	body, err := io.ReadAll(io.LimitReader(inv.Body, maxRouteAnswer+1))
	if stop() {
		_ = inv.Body.Close() // the answer is here; there is nothing to do about it
	}
	switch {
	case ctx.Err() != nil:
		return routeAnswer{}, ctx.Err()
	case inv.Failed != nil:
		return routeAnswer{}, inv.Failed
	case err != nil:
		return routeAnswer{}, fmt.Errorf("read the answer: %w", err)
	case len(body) > maxRouteAnswer:
		return routeAnswer{}, fmt.Errorf("the answer is longer than %d bytes", maxRouteAnswer)
	}
	return readRouteAnswer(body)
}

// readRouteAnswer decodes what a function answers. An answer without headers, which
// that to every message is, needs no reflection.
func readRouteAnswer(body []byte) (answer routeAnswer, err error) {
	known := true
	if json.Valid(body) && wire.Tokens(body, func(name []byte, value json.RawMessage) bool {
		switch string(name) {
		case `"statusCode"`:
			answer.StatusCode, err = strconv.Atoi(string(value))
			known = err == nil
		case `"body"`:
			answer.Body, known = wire.String(value)
		case `"isBase64Encoded"`:
			answer.IsBase64Encoded = string(value) == "true"
		case `"headers"`, `"multiValueHeaders"`:
			known = string(value) == "null"
		default:
			known = false
		}
		return known
	}) && known {
		return answer, nil
	}
	answer = routeAnswer{}
	if err := json.Unmarshal(body, &answer); err != nil {
		return routeAnswer{}, fmt.Errorf("the answer is not a proxy response: %w", err)
	}
	return answer, nil
}

// connectStatus is what the client's upgrade is answered with; 200 means: upgrade.
func connectStatus(answer routeAnswer, err error) int {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	case errors.Is(err, ErrThrottled):
		return http.StatusTooManyRequests
	case err != nil:
		return http.StatusBadGateway
	case answer.ok():
		return http.StatusOK
	case answer.StatusCode < 300 || answer.StatusCode > 599:
		return http.StatusBadGateway
	}
	return answer.StatusCode
}

// routeReply is what goes back on the connection; false means that the route did
// not answer as it must.
func routeReply(answer routeAnswer, err error, limit int) ([]byte, bool) {
	if err != nil || !answer.ok() {
		return nil, false
	}
	body := []byte(answer.Body)
	if answer.IsBase64Encoded {
		if body, err = base64.StdEncoding.DecodeString(answer.Body); err != nil {
			return nil, false
		}
	}
	return body, len(body) <= limit
}

// failureMessage is what a client gets instead of a route's answer.
func failureMessage(err error, event *events.APIGatewayWebsocketProxyRequest) []byte {
	text := textInternal
	if errors.Is(err, context.DeadlineExceeded) {
		text = textTimeout
	}
	ctx := event.RequestContext
	return fmt.Appendf(nil, `{"message": %q, "connectionId":%q, "requestId":%q}`, text, ctx.ConnectionID, ctx.RequestID)
}

func refuseConnect(w http.ResponseWriter, status int, event *events.APIGatewayWebsocketProxyRequest) {
	text := http.StatusText(status)
	switch status {
	case http.StatusBadGateway:
		text = textInternal
	case http.StatusGatewayTimeout:
		text = textTimeout
	}
	ctx := event.RequestContext
	answerJSON(w, status, fmt.Appendf(nil, `{"message": %q, "connectionId":%q, "requestId":%q}`, text, ctx.ConnectionID, ctx.RequestID))
}

func refuse(w http.ResponseWriter, status int, text string) {
	answerJSON(w, status, fmt.Appendf(nil, `{"message":%q}`, text))
}

func answerJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// A client that went away needs no answer.
	_, _ = w.Write(body)
}

// asksForWebSocket says whether the upgrade can be made, so that a function is not
// asked about one that cannot.
func asksForWebSocket(r *http.Request) bool {
	return r.Method == http.MethodGet && r.ProtoAtLeast(1, 1) &&
		hasToken(r.Header, "Connection", "upgrade") && hasToken(r.Header, "Upgrade", "websocket") &&
		r.Header.Get("Sec-WebSocket-Version") == "13" && r.Header.Get("Sec-WebSocket-Key") != ""
}

func hasToken(h http.Header, name, token string) bool {
	for _, line := range h.Values(name) {
		for t := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
	}
	return false
}

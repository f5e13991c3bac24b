package apigw

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/lambda"
	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

const (
	// maxRouteAnswer is Lambda's limit for the bytes of a synchronous answer.
	maxRouteAnswer = 6 << 20
	requestTime    = "02/Jan/2006:15:04:05 -0700"

	textInternal = "Internal server error"
	textTimeout  = "Endpoint request timed out"
)

// Limits returns API Gateway's limits. AWS does not publish how many bytes it buffers for a slow
// client, so SendBuffer is a guess. InWork is in effect unlimited, as on AWS. AWS's limit of 32 KB
// for a WebSocket frame is not imitated.
func Limits() sockets.Limits {
	return sockets.Limits{
		Message: 128 << 10, SendBuffer: 1 << 20, NewPerSecond: 500, InWork: 1 << 20,
		Idle: 10 * time.Minute, Life: 2 * time.Hour, Connect: storage.ConnectTimeout, Route: 29 * time.Second,
	}
}

// SocketRoutes are the routes $connect, $default (with a route response) and $disconnect
// of a WebSocket API, all integrated with one function. All fields are required.
type SocketRoutes struct {
	APIID, Stage string
	Function     string
	Invoker      lambda.Invoker
	Log          *slog.Logger
}

var _ sockets.Routes = SocketRoutes{}

// Connect implements [sockets.Routes].
func (r SocketRoutes) Connect(ctx context.Context, c sockets.Conn, req *http.Request) sockets.Reply {
	e, about := r.connectEvent(c, req)
	answer, err := r.invoke(ctx, e)
	status := connectStatus(answer, err)
	if status == http.StatusOK {
		return sockets.Reply{Status: status, Protocol: answer.header("Sec-WebSocket-Protocol")}
	}
	text := http.StatusText(status)
	switch status {
	case http.StatusBadGateway:
		text = textInternal
	case http.StatusGatewayTimeout:
		text = textTimeout
	}
	return sockets.Reply{Status: status, Body: failure(text, about)}
}

// Message implements [sockets.Routes]. If the route fails, it returns API Gateway's
// error message in place of the answer.
func (r SocketRoutes) Message(ctx context.Context, c sockets.Conn, data []byte) []byte {
	e, about := r.messageEvent(c, data)
	answer, err := r.invoke(ctx, e)
	reply, sane := routeReply(answer, err)
	if sane {
		return reply
	}
	r.Log.Warn("a WebSocket message was not handled", "connection", c.ID,
		"request", about["requestId"], "status", answer.StatusCode, "error", err)
	text := textInternal
	if errors.Is(err, context.DeadlineExceeded) {
		text = textTimeout
	}
	return failure(text, about)
}

// Disconnect implements [sockets.Routes].
func (r SocketRoutes) Disconnect(ctx context.Context, c sockets.Conn, code int, reason string) {
	if _, err := r.invoke(ctx, r.disconnectEvent(c, code, reason)); err != nil {
		r.Log.Info("a $disconnect failed", "connection", c.ID, "error", err)
	}
}

// event returns an event in API Gateway's form, and its member requestContext, to which callers
// may add members. Members without a value are left out.
func (r SocketRoutes) event(c sockets.Conn, route, kind string) (e, about map[string]any) {
	now, id := time.Now(), awsapi.NewID()
	about = map[string]any{
		"stage": r.Stage, "requestId": id, "identity": map[string]any{"sourceIp": c.SourceIP, "userAgent": c.UserAgent},
		"apiId": r.APIID, "connectedAt": c.ConnectedAt.UnixMilli(), "connectionId": c.ID, "domainName": c.Host,
		"eventType": kind, "extendedRequestId": id, "messageDirection": "IN",
		"requestTime": now.UTC().Format(requestTime), "requestTimeEpoch": now.UnixMilli(), "routeKey": route,
	}
	return map[string]any{"requestContext": about, "isBase64Encoded": false}, about
}

// connectEvent returns the event of $connect, the only one with the client's headers
// and query.
func (r SocketRoutes) connectEvent(c sockets.Conn, req *http.Request) (e, about map[string]any) {
	e, about = r.event(c, "$connect", "CONNECT")
	h := requestHeaders(req, c.ConnectedAt)
	e["multiValueHeaders"], e["headers"] = h, lastOfEach(h)
	if q := req.URL.Query(); len(q) > 0 {
		e["multiValueQueryStringParameters"], e["queryStringParameters"] = q, lastOfEach(q)
	}
	return e, about
}

func (r SocketRoutes) messageEvent(c sockets.Conn, data []byte) (e, about map[string]any) {
	e, about = r.event(c, "$default", "MESSAGE")
	about["messageId"] = awsapi.NewID()
	if len(data) > 0 {
		e["body"] = string(data)
	}
	return e, about
}

func (r SocketRoutes) disconnectEvent(c sockets.Conn, code int, reason string) map[string]any {
	e, about := r.event(c, "$disconnect", "DISCONNECT")
	// On AWS, this event has these headers instead of the client's.
	h := map[string][]string{"Host": {c.Host}, "x-api-key": {""}, "X-Forwarded-For": {""}, "x-restapi": {""}}
	e["multiValueHeaders"], e["headers"] = h, lastOfEach(h)
	about["disconnectStatusCode"], about["disconnectReason"] = code, reason
	return e
}

func lastOfEach(all map[string][]string) map[string]string {
	m := make(map[string]string, len(all))
	for k, v := range all {
		m[k] = v[len(v)-1]
	}
	return m
}

// routeAnswer is the function's answer for a route, in Lambda proxy form.
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

// invoke runs one route and reads its whole answer. If ctx ends before that, invoke returns
// the error of ctx, and the function goes on.
func (r SocketRoutes) invoke(ctx context.Context, event map[string]any) (answer routeAnswer, err error) {
	payload, err := json.Marshal(event)
	if err != nil {
		return routeAnswer{}, err
	}
	inv, err := r.Invoker.Invoke(ctx, r.Function, payload)
	if err != nil {
		return routeAnswer{}, err
	}
	stop := context.AfterFunc(ctx, func() { _ = inv.Body.Close() })
	body, err := io.ReadAll(io.LimitReader(inv.Body, maxRouteAnswer+1))
	if stop() {
		_ = inv.Body.Close() // the answer is complete, so the error does not matter
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
	if err := json.Unmarshal(body, &answer); err != nil {
		return routeAnswer{}, fmt.Errorf("the answer is not a proxy response: %w", err)
	}
	return answer, nil
}

// connectStatus returns the status of the response to a client that wants to open a WebSocket.
// 200 means that the connection is upgraded.
func connectStatus(answer routeAnswer, err error) int {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	case errors.Is(err, lambda.ErrThrottled):
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

// routeReply returns the message that the client gets for an answer of the route. It returns
// false if the route has failed, or if its answer is invalid or too long.
func routeReply(answer routeAnswer, err error) ([]byte, bool) {
	if err != nil || !answer.ok() {
		return nil, false
	}
	body := []byte(answer.Body)
	if answer.IsBase64Encoded {
		if body, err = base64.StdEncoding.DecodeString(answer.Body); err != nil {
			return nil, false
		}
	}
	return body, len(body) <= Limits().Message
}

// failure returns the message that a client gets instead of a route's answer. The argument about is
// the requestContext of the route's event.
func failure(text string, about map[string]any) []byte {
	return fmt.Appendf(nil, `{"message": %q, "connectionId":%q, "requestId":%q}`, text, about["connectionId"], about["requestId"])
}

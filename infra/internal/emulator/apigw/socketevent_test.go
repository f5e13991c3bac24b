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
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/lambda"
	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
)

type (
	socketEvent  = events.APIGatewayWebsocketProxyRequest
	socketAnswer = events.APIGatewayProxyResponse
)

// socketFunction is a function that gives one answer, and keeps the event. An error of
// type *lambda.FunctionError is reported as the function's, any other as the invoker's.
type socketFunction struct {
	answer socketAnswer
	err    error

	event socketEvent
}

func (f *socketFunction) Invoke(_ context.Context, _ string, payload []byte) (*lambda.Invocation, error) {
	f.event = socketEvent{}
	if err := json.Unmarshal(payload, &f.event); err != nil {
		return nil, err
	}
	var failed *lambda.FunctionError
	if f.err != nil && !errors.As(f.err, &failed) {
		return nil, f.err
	}
	body, err := json.Marshal(f.answer)
	return &lambda.Invocation{Body: io.NopCloser(strings.NewReader(string(body))), Failed: failed}, err
}

func routesOf(in lambda.Invoker) sockets.Routes {
	return SocketRoutes{"mcp", "prod", "socket", in, slog.New(slog.DiscardHandler)}
}

// someone returns a connection that begins now.
func someone() sockets.Conn {
	return sockets.Conn{ID: awsapi.NewID(), SourceIP: "192.0.2.1", UserAgent: "test/1", Host: "gateway.test", ConnectedAt: time.Now()}
}

func upgrade(t *testing.T) *http.Request {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://gateway.test/prod?a=1&b=2&b=3", nil)
	r.RemoteAddr = "192.0.2.1:50000"
	r.Header = http.Header{"X-Key": {"k1", "k2"}, "User-Agent": {"test/1"}, "Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Key": {"AA=="}}
	return r
}

func TestConnectDecidesAboutTheUpgrade(t *testing.T) {
	for name, test := range map[string]struct {
		answer socketAnswer
		err    error
		status int
		text   string // of a refusal
	}{
		"taken":           {socketAnswer{StatusCode: 200}, nil, 200, ""},
		"another 2xx":     {socketAnswer{StatusCode: 204}, nil, 200, ""},
		"unauthorized":    {socketAnswer{StatusCode: 401, Body: "secret"}, nil, 401, "Unauthorized"},
		"forbidden":       {socketAnswer{StatusCode: 403}, nil, 403, "Forbidden"},
		"a redirect":      {socketAnswer{StatusCode: 301}, nil, 301, "Moved Permanently"},
		"no status":       {socketAnswer{}, nil, 502, "Internal server error"},
		"a strange one":   {socketAnswer{StatusCode: 1000}, nil, 502, "Internal server error"},
		"function failed": {socketAnswer{}, &lambda.FunctionError{Type: lambda.ErrorExit}, 502, "Internal server error"},
		"throttled":       {socketAnswer{}, lambda.ErrThrottled, 429, "Too Many Requests"},
		"too late":        {socketAnswer{}, context.DeadlineExceeded, 504, "Endpoint request timed out"},
	} {
		t.Run(name, func(t *testing.T) {
			f, c := &socketFunction{answer: test.answer, err: test.err}, someone()
			got := routesOf(f).Connect(t.Context(), c, upgrade(t))
			body := ""
			if test.text != "" {
				body = fmt.Sprintf(`{"message": %q, "connectionId":%q, "requestId":%q}`, test.text, c.ID, f.event.RequestContext.RequestID)
			}
			if got.Status != test.status || string(got.Body) != body {
				t.Errorf("%d %s, want %d %s", got.Status, got.Body, test.status, body)
			}
		})
	}
}

func TestTheSubprotocolIsTheFunctionsToGive(t *testing.T) {
	for name, answer := range map[string]socketAnswer{
		"":    {StatusCode: 200},
		"one": {StatusCode: 200, Headers: map[string]string{"sec-websocket-PROTOCOL": "one"}},
		"two": {StatusCode: 200, MultiValueHeaders: map[string][]string{"Sec-WebSocket-Protocol": {"one", "two"}}},
	} {
		if got := routesOf(&socketFunction{answer: answer}).Connect(t.Context(), someone(), upgrade(t)); got.Protocol != name {
			t.Errorf("%+v: %q, want %q", answer, got.Protocol, name)
		}
	}
}

func TestARouteAnswerGoesBackOnTheConnection(t *testing.T) {
	most := strings.Repeat("x", 128<<10)
	for name, test := range map[string]struct {
		answer socketAnswer
		want   string
	}{
		"plain":   {socketAnswer{StatusCode: 200, Body: "yes"}, "yes"},
		"created": {socketAnswer{StatusCode: 201, Body: "yes"}, "yes"},
		"base64":  {socketAnswer{StatusCode: 200, Body: base64.StdEncoding.EncodeToString([]byte("yes")), IsBase64Encoded: true}, "yes"},
		"nothing": {socketAnswer{StatusCode: 200}, ""},
		"much":    {socketAnswer{StatusCode: 200, Body: most}, most},
	} {
		t.Run(name, func(t *testing.T) {
			if got := routesOf(&socketFunction{answer: test.answer}).Message(t.Context(), someone(), []byte("?")); string(got) != test.want {
				t.Errorf("%s: %.100q", name, got)
			}
		})
	}
}

func TestAFailedRouteIsToldToTheClient(t *testing.T) {
	for name, test := range map[string]struct {
		answer socketAnswer
		err    error
		text   string
	}{
		"function failed": {socketAnswer{}, &lambda.FunctionError{Type: lambda.ErrorExit}, textInternal},
		"throttled":       {socketAnswer{}, lambda.ErrThrottled, textInternal},
		"too late":        {socketAnswer{}, context.DeadlineExceeded, textTimeout},
		"status 500":      {socketAnswer{StatusCode: 500, Body: "secret"}, nil, textInternal},
		"no status":       {socketAnswer{Body: "lost"}, nil, textInternal},
		"too long":        {socketAnswer{StatusCode: 200, Body: strings.Repeat("x", 128<<10+1)}, nil, textInternal},
		"bad base64":      {socketAnswer{StatusCode: 200, Body: "%", IsBase64Encoded: true}, nil, textInternal},
	} {
		t.Run(name, func(t *testing.T) {
			f, c := &socketFunction{answer: test.answer, err: test.err}, someone()
			got := string(routesOf(f).Message(t.Context(), c, []byte("?")))
			want := fmt.Sprintf(`{"message": %q, "connectionId":%q, "requestId":%q}`, test.text, c.ID, f.event.RequestContext.RequestID)
			if got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}

// The gateway limits its wait for the end of an answer that has begun.
func TestAnAnswerThatDoesNotEndIsTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		go func() { _, _ = io.WriteString(w, `{"statusCode":`) }()
		ctx, cancel := context.WithTimeout(t.Context(), 29*time.Second)
		defer cancel()
		begun := time.Now()
		got := routesOf(answering(func(context.Context) (io.ReadCloser, error) { return r, nil })).Message(ctx, someone(), []byte("?"))
		if took := time.Since(begun); !strings.Contains(string(got), textTimeout) || took != 29*time.Second {
			t.Errorf("after %v: %s", took, got)
		}
		if _, err := w.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the answer is still read: %v", err)
		}
	})
}

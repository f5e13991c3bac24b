package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

type (
	wsEvent  = events.APIGatewayWebsocketProxyRequest
	wsAnswer = events.APIGatewayProxyResponse
)

// wsFunction is a function in the test's own process: an Invoker that decodes the
// event, keeps it and lets handle answer. An error of type *FunctionError is
// reported as the function's, any other as the invoker's.
type wsFunction struct {
	handle func(wsEvent) (wsAnswer, error)

	mu   sync.Mutex
	seen []wsEvent
}

func (f *wsFunction) Invoke(ctx context.Context, _ string, payload []byte) (*Invocation, error) {
	var e wsEvent
	if err := json.Unmarshal(payload, &e); err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.seen = append(f.seen, e)
	f.mu.Unlock()
	type result struct {
		answer wsAnswer
		err    error
	}
	done := make(chan result, 1)
	go func() {
		answer, err := f.handle(e)
		done <- result{answer, err}
	}()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r := <-done:
		var failed *FunctionError
		if r.err != nil && !errors.As(r.err, &failed) {
			return nil, r.err
		}
		body, err := json.Marshal(r.answer)
		return &Invocation{Body: io.NopCloser(bytes.NewReader(body)), Failed: failed}, err
	}
}

// route returns the events of a route so far, in the order of their invocations.
func (f *wsFunction) route(key string) []wsEvent {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.seen), func(e wsEvent) bool { return e.RequestContext.RouteKey != key })
}

// echo answers $connect and $disconnect with 200 and a message with itself.
func echo(e wsEvent) (wsAnswer, error) { return wsAnswer{StatusCode: 200, Body: e.Body}, nil }

// onMessage is echo with another answer to messages.
func onMessage(handle func(wsEvent) (wsAnswer, error)) func(wsEvent) (wsAnswer, error) {
	return func(e wsEvent) (wsAnswer, error) {
		if e.RequestContext.EventType != "MESSAGE" {
			return wsAnswer{StatusCode: 200}, nil
		}
		return handle(e)
	}
}

// pipeListener is a network without buffers and ports, fit for synctest.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

func (l *pipeListener) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// wsBench is a WebSocket API with both of its servers.
type wsBench struct {
	*WebSocketAPI
	t           *testing.T
	fn          *wsFunction
	clients     *pipeListener
	connections *pipeListener
}

func newWSBench(t *testing.T, handle func(wsEvent) (wsAnswer, error), change func(*WebSocketConfig)) *wsBench {
	t.Helper()
	b := &wsBench{t: t, fn: &wsFunction{handle: handle}, clients: newPipeListener(), connections: newPipeListener()}
	cfg := WebSocketConfig{Name: "mcp", Stage: "prod", Function: "socket", Invoker: b.fn}
	if change != nil {
		change(&cfg)
	}
	api, err := NewWebSocketAPI(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.WebSocketAPI = api
	b.serve(b.clients, api)
	b.serve(b.connections, api.Connections())
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		cancel() // what a test left open is cut
		_ = api.Close(ctx)
	})
	return b
}

func (b *wsBench) serve(l *pipeListener, h http.Handler) {
	srv := &http.Server{Handler: h}
	go func() { _ = srv.Serve(l) }()
	b.t.Cleanup(func() { _ = srv.Close() })
}

// refusal is what a client gets instead of an upgrade.
type refusal struct {
	status int
	body   string
}

func (r refusal) Error() string { return fmt.Sprintf("refused with %d %s", r.status, r.body) }

// dial opens a connection. The error is a refusal if the server answered.
func (b *wsBench) dial(path string, o websocket.DialOptions) (*websocket.Conn, error) {
	o.HTTPClient = &http.Client{Transport: &http.Transport{DialContext: b.clients.dial, DisableKeepAlives: true}}
	conn, res, err := websocket.Dial(b.t.Context(), "ws://gateway.test"+path, &o) //nolint:bodyclose // the library keeps the start of a body and closes it
	switch {
	case err == nil:
		conn.SetReadLimit(-1)
		b.t.Cleanup(func() { _ = conn.CloseNow() })
		return conn, nil
	case res == nil:
		return nil, err
	}
	body, err := io.ReadAll(res.Body)
	return nil, errors.Join(refusal{res.StatusCode, string(body)}, err)
}

// refused asks for a connection that must not come about.
func (b *wsBench) refused(path string) refusal {
	b.t.Helper()
	_, err := b.dial(path, websocket.DialOptions{})
	var r refusal
	if !errors.As(err, &r) {
		b.t.Fatalf("dial: %v; want a refusal", err)
	}
	return r
}

// client opens a connection; id is what the function was told.
func (b *wsBench) client() (conn *websocket.Conn, id string) {
	b.t.Helper()
	conn, err := b.dial("/"+b.cfg.Stage, websocket.DialOptions{})
	if err != nil {
		b.t.Fatalf("dial: %v", err)
	}
	all := b.fn.route("$connect")
	return conn, all[len(all)-1].RequestContext.ConnectionID
}

func (b *wsBench) say(conn *websocket.Conn, text string) {
	b.t.Helper()
	if err := conn.Write(b.t.Context(), websocket.MessageText, []byte(text)); err != nil {
		b.t.Fatalf("write: %v", err)
	}
}

func (b *wsBench) hear(conn *websocket.Conn) string {
	b.t.Helper()
	_, data, err := conn.Read(b.t.Context())
	if err != nil {
		b.t.Fatalf("read: %v", err)
	}
	return string(data)
}

// closeOf reads until the connection ends and returns the close frame.
func (b *wsBench) closeOf(conn *websocket.Conn) websocket.CloseError {
	b.t.Helper()
	for {
		_, _, err := conn.Read(b.t.Context())
		if err == nil {
			continue
		}
		var end websocket.CloseError
		if !errors.As(err, &end) {
			b.t.Fatalf("the connection ended without a close frame: %v", err)
		}
		return end
	}
}

// disconnect waits until all is quiet and returns the one $disconnect event.
func (b *wsBench) disconnect() (int64, string) {
	b.t.Helper()
	synctest.Wait()
	all := b.fn.route("$disconnect")
	if len(all) != 1 {
		b.t.Fatalf("%d $disconnect events, want 1", len(all))
	}
	return all[0].RequestContext.DisconnectStatusCode, *all[0].RequestContext.DisconnectReason
}

func TestConnectEventIsThatOfAPIGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWSBench(t, echo, nil)
		_, err := b.dial("/prod?a=1&b=2&b=3", websocket.DialOptions{
			HTTPHeader:   http.Header{"X-Key": {"k1", "k2"}, "User-Agent": {"test/1"}},
			Subprotocols: []string{"mcp"},
		})
		if err != nil {
			t.Fatal(err)
		}
		got := b.fn.route("$connect")[0]
		key := got.Headers["Sec-Websocket-Key"]
		headers := map[string][]string{
			"Accept-Encoding": {"gzip"}, "Host": {"gateway.test"}, "User-Agent": {"test/1"}, "X-Key": {"k1", "k2"},
			"Sec-Websocket-Key": {key}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Protocol": {"mcp"},
			"X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Port": {"80"}, "X-Forwarded-Proto": {"http"},
			"X-Amzn-Trace-Id": {got.Headers["X-Amzn-Trace-Id"]},
		}
		want := wsEvent{
			Headers: lastOfEach(headers), MultiValueHeaders: headers,
			QueryStringParameters:           map[string]string{"a": "1", "b": "3"},
			MultiValueQueryStringParameters: map[string][]string{"a": {"1"}, "b": {"2", "3"}},
			RequestContext: events.APIGatewayWebsocketProxyRequestContext{
				RouteKey: "$connect", EventType: "CONNECT", MessageDirection: "IN",
				Stage: "prod", APIID: "mcp", DomainName: "gateway.test",
				ConnectedAt: 946684800000, RequestTimeEpoch: 946684800000, RequestTime: "01/Jan/2000:00:00:00 +0000",
				Identity: events.APIGatewayRequestIdentity{SourceIP: "127.0.0.1", UserAgent: "test/1"},
			},
		}
		ids := cmpopts.IgnoreFields(events.APIGatewayWebsocketProxyRequestContext{}, "ConnectionID", "RequestID", "ExtendedRequestID")
		if d := cmp.Diff(want, got, ids, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("event (-want +got):\n%s", d)
		}
		for _, id := range []string{got.RequestContext.ConnectionID, got.RequestContext.RequestID} {
			if !isGatewayID(id) {
				t.Errorf("%q is no id of API Gateway", id)
			}
		}
	})
}

func TestConnectDecidesAboutTheUpgrade(t *testing.T) {
	tests := map[string]struct {
		answer wsAnswer
		err    error
		status int
		text   string
	}{
		"unauthorized":    {wsAnswer{StatusCode: 401}, nil, 401, "Unauthorized"},
		"forbidden":       {wsAnswer{StatusCode: 403}, nil, 403, "Forbidden"},
		"no status":       {wsAnswer{}, nil, 502, "Internal server error"},
		"function failed": {wsAnswer{}, &FunctionError{Type: ErrorExit}, 502, "Internal server error"},
		"unknown":         {wsAnswer{}, ErrUnknownFunction, 502, "Internal server error"},
		"throttled":       {wsAnswer{}, ErrThrottled, 429, "Too Many Requests"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newWSBench(t, func(wsEvent) (wsAnswer, error) { return test.answer, test.err }, nil)
				got := b.refused("/prod")
				if want := fmt.Sprintf(`{"message": %q, "connectionId":`, test.text); got.status != test.status || !strings.HasPrefix(got.body, want) {
					t.Errorf("got %v, want %d %s", got, test.status, want)
				}
				synctest.Wait()
				if n := len(b.fn.route("$disconnect")); n != 0 {
					t.Errorf("%d $disconnect events for a connection that never was", n)
				}
			})
		})
	}
}

func TestTheSubprotocolIsTheFunctionsToGive(t *testing.T) {
	for _, given := range []string{"", "mcp"} {
		synctest.Test(t, func(t *testing.T) {
			b := newWSBench(t, func(wsEvent) (wsAnswer, error) {
				a := wsAnswer{StatusCode: 200}
				if given != "" {
					a.Headers = map[string]string{"sec-websocket-protocol": given}
				}
				return a, nil
			}, nil)
			conn, err := b.dial("/prod", websocket.DialOptions{Subprotocols: []string{"other", "mcp"}})
			if err != nil {
				t.Fatal(err)
			}
			if got := conn.Subprotocol(); got != given {
				t.Errorf("subprotocol = %q, want %q", got, given)
			}
		})
	}
}

func TestOnlyAnUpgradeOfTheStageReachesTheFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWSBench(t, echo, nil)
		if got := b.refused("/other"); got.status != http.StatusForbidden {
			t.Errorf("wrong stage: %v", got)
		}
		client := &http.Client{Transport: &http.Transport{DialContext: b.clients.dial, DisableKeepAlives: true}}
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://gateway.test/prod", nil)
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusUpgradeRequired {
			t.Errorf("no upgrade: status %d", res.StatusCode)
		}
		if n := len(b.fn.route("$connect")); n != 0 {
			t.Errorf("the function was asked %d times", n)
		}
	})
}

func TestTooManyNewConnectionsAreTurnedAwayForASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWSBench(t, echo, func(c *WebSocketConfig) { c.Limits.NewPerSecond = 3 })
		for range 3 {
			b.client()
		}
		if got := b.refused("/prod"); got.status != http.StatusTooManyRequests {
			t.Errorf("the fourth: %v; want 429", got)
		}
		time.Sleep(time.Second)
		b.client()
	})
}

func TestUsageCountsWhatABillIsMadeOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWSBench(t, onMessage(func(e wsEvent) (wsAnswer, error) {
			return wsAnswer{StatusCode: 200, Body: strings.Repeat("x", 65<<10)}, nil
		}), nil)
		conn, _ := b.client()
		b.say(conn, "small")
		b.hear(conn)
		time.Sleep(time.Minute)
		open := b.Usage()
		if open.Open != 1 || open.ConnectedTime != time.Minute {
			t.Errorf("open: %+v", open)
		}
		_ = conn.Close(websocket.StatusNormalClosure, "")
		synctest.Wait()
		time.Sleep(time.Hour)
		want := WebSocketUsage{Connections: 1, ConnectedTime: time.Minute, MessagesIn: 1, MessagesOut: 3, Invocations: 3}
		if d := cmp.Diff(want, b.Usage()); d != "" {
			t.Errorf("usage (-want +got):\n%s", d)
		}
	})
}

func TestCloseEndsAllConnectionsAndRefusesNewOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWSBench(t, echo, nil)
		one, _ := b.client()
		two, _ := b.client()
		closed := make(chan error, 1)
		go func() { closed <- b.Close(t.Context()) }()
		for _, conn := range []*websocket.Conn{one, two} {
			if end := b.closeOf(conn); end.Code != websocket.StatusGoingAway {
				t.Errorf("close = %+v, want 1001", end)
			}
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if n := len(b.fn.route("$disconnect")); n != 2 {
			t.Errorf("%d $disconnect events when Close returned, want 2", n)
		}
		if got := b.refused("/prod"); got.status != http.StatusServiceUnavailable {
			t.Errorf("after close: %v; want 503", got)
		}
	})
}

func TestCloseCutsWhatDoesNotEndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := newWSBench(t, onMessage(func(wsEvent) (wsAnswer, error) { <-release; return wsAnswer{}, nil }), nil)
		defer close(release)
		conn, _ := b.client()
		b.say(conn, "hangs")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if err := b.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error = %v", err)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestNewWebSocketAPISaysWhatIsMissing(t *testing.T) {
	fn := &wsFunction{handle: echo}
	tests := map[string]WebSocketConfig{
		"stage":       {Function: "f", Invoker: fn},
		"stage path":  {Stage: "a/b", Function: "f", Invoker: fn},
		"function":    {Stage: "prod", Invoker: fn},
		"no function": {Stage: "prod", Function: "f"},
	}
	for name, cfg := range tests {
		if _, err := NewWebSocketAPI(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

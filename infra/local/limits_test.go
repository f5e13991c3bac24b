package local

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/service/apigatewaymanagementapi/types"
	"github.com/coder/websocket"

	"github.com/dormouse-mcp/dormouse/infra/local/lambda"
	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
)

type (
	wsEvent  = events.APIGatewayWebsocketProxyRequest
	wsAnswer = events.APIGatewayProxyResponse
)

// wsFunction is a function behind a WebSocket API, in the test's own process.
type wsFunction struct {
	handle func(wsEvent) (wsAnswer, error)

	mu   sync.Mutex
	seen []wsEvent
}

func (f *wsFunction) Invoke(ctx context.Context, _ string, payload []byte) (*lambda.Invocation, error) {
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
		if r.err != nil {
			return nil, r.err
		}
		body, err := json.Marshal(r.answer)
		return &lambda.Invocation{Body: io.NopCloser(bytes.NewReader(body))}, err
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

// gatewayBench is one of the two APIs that a machine opens, with a function behind it.
type gatewayBench struct {
	localtest.WebSockets
	t           *testing.T
	fn          *wsFunction
	connections *localtest.Pipes
}

// gateway opens the APIs of a machine with limits, and picks one.
func gateway(t *testing.T, limits, which string, handle func(wsEvent) (wsAnswer, error)) *gatewayBench {
	t.Helper()
	b := &gatewayBench{t: t, fn: &wsFunction{handle: handle}}
	m := &machine{cfg: Config{Limits: limits}, ledger: testLedger(Bill{}), log: slog.New(slog.DiscardHandler)}
	if err := m.openSockets(m.routes(b.fn, relayStage, "relay"), m.routes(b.fn, socketStage, "socket")); err != nil {
		t.Fatal(err)
	}
	api, stage := m.relay, relayStage
	if which == "clients" {
		api, stage = m.socket, socketStage
	}
	b.WebSockets = localtest.WebSockets{T: t, API: localtest.Serve(t, api), Stage: stage}
	b.connections = localtest.Serve(t, sockets.Connections{m.relay, m.socket})
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		cancel() // what a test left open is cut
		_ = api.Close(ctx)
	})
	return b
}

// client opens a connection; id is what the function was told.
func (b *gatewayBench) client() (conn *localtest.WebSocket, id string) {
	b.t.Helper()
	conn = b.Open()
	all := b.fn.route("$connect")
	return conn, all[len(all)-1].RequestContext.ConnectionID
}

func (b *gatewayBench) sdk() localtest.Connections {
	return localtest.NewConnections(b.t, "http://local/"+b.Stage, b.connections.Dial)
}

// gatewayLimit is something API Gateway refuses, or does not promise. Nothing is
// shortened: the figures are AWS's, and the time is virtual.
type gatewayLimit struct {
	handle func(wsEvent) (wsAnswer, error) // nil: echo
	check  func(*gatewayBench)
}

// TestBothWebSocketAPIsRefuseWhatAWSRefuses holds the two APIs that Run opens, as it
// opens them for functions that are programs, to every limit by its name.
func TestBothWebSocketAPIsRefuseWhatAWSRefuses(t *testing.T) {
	for _, api := range []string{"runners", "clients"} {
		for name, limit := range gatewayLimits() {
			t.Run(api+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					handle := limit.handle
					if handle == nil {
						handle = echo
					}
					limit.check(gateway(t, LimitsAWS, api, handle))
				})
			})
		}
	}
}

// AWS does not promise a $disconnect, and the relay has no use for it.
func TestOnlyTheAPIOfClientsTellsOfTheEnd(t *testing.T) {
	for api, want := range map[string]int{"runners": 0, "clients": 1} {
		synctest.Test(t, func(t *testing.T) {
			b := gateway(t, LimitsAWS, api, echo)
			conn, _ := b.client()
			_ = conn.CloseNow()
			synctest.Wait()
			if n := len(b.fn.route("$disconnect")); n != want {
				t.Errorf("%s: %d $disconnect events, want %d", api, n, want)
			}
		})
	}
}

func TestBothWebSocketAPIsHaveTheLimitsOfAHome(t *testing.T) {
	frame := strings.Repeat("x", 128<<10)
	for _, api := range []string{"runners", "clients"} {
		for name, limit := range map[string]gatewayLimit{
			"a frame of 128 KB passes": {check: func(b *gatewayBench) {
				conn, _ := b.client()
				go conn.SayFrames(websocket.MessageText, frame)
				if got := conn.Hear(); got != frame {
					b.t.Errorf("heard %d bytes", len(got))
				}
			}},
			"message over 128 KB closes with 1009": {check: closedFor(websocket.MessageText, 1009, frame, "x")},
			"an hour of silence closes nothing, a day does": {check: func(b *gatewayBench) {
				conn, _ := b.client()
				time.Sleep(time.Hour)
				conn.Say("x")
				conn.Hear()
				begun := time.Now()
				if end := conn.End(); end.Code != 1001 || time.Since(begun) != 24*time.Hour {
					b.t.Errorf("after %v: %+v", time.Since(begun), end)
				}
			}},
			"256 messages are handled at once": {
				handle: onMessage(func(e wsEvent) (wsAnswer, error) { <-time.After(time.Minute); return echo(e) }),
				check: func(b *gatewayBench) {
					conn, _ := b.client()
					go func() {
						for range 260 {
							conn.Say("x")
						}
					}()
					time.Sleep(time.Second)
					if n := len(b.fn.route("$default")); n != 256 {
						b.t.Errorf("%d messages are handled at once", n)
					}
					for range 260 {
						conn.Hear()
					}
				},
			},
		} {
			t.Run(api+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					handle := limit.handle
					if handle == nil {
						handle = echo
					}
					limit.check(gateway(t, LimitsHome, api, handle))
				})
			})
		}
	}
}

func gatewayLimits() map[string]gatewayLimit {
	all := map[string]gatewayLimit{}
	for _, part := range []map[string]gatewayLimit{sizeLimits(), timeLimits(), orderLimits(), postLimits(), connectLimits()} {
		for name, limit := range part {
			all[name] = limit
		}
	}
	return all
}

// closedFor sends frames of one message and wants the connection closed for it,
// before the function saw anything.
func closedFor(kind websocket.MessageType, code websocket.StatusCode, frames ...string) func(*gatewayBench) {
	return func(b *gatewayBench) {
		conn, _ := b.client()
		go conn.SayFrames(kind, frames...) // the server may hang up in the middle
		if end := conn.End(); end.Code != code {
			b.t.Errorf("close = %+v, want %d", end, code)
		}
		if n := len(b.fn.route("$default")); n != 0 {
			b.t.Error("the function got the message")
		}
	}
}

func sizeLimits() map[string]gatewayLimit {
	kb := strings.Repeat("x", 1<<10)
	frame := strings.Repeat(kb, 32)
	return map[string]gatewayLimit{
		"frame over 32 KB closes with 1009":      {check: closedFor(websocket.MessageText, 1009, frame+"x")},
		"message over 128 KB closes with 1009":   {check: closedFor(websocket.MessageText, 1009, frame, frame, frame, frame, "x")},
		"binary message closes with 1003":        {check: closedFor(websocket.MessageBinary, 1003, "x")},
		"text that is no UTF-8 closes with 1007": {check: closedFor(websocket.MessageText, 1007, "\xc3")},
		"route answer over 128 KB is not sent": {
			handle: onMessage(func(wsEvent) (wsAnswer, error) {
				return wsAnswer{StatusCode: 200, Body: strings.Repeat(kb, 128) + "x"}, nil
			}),
			check: func(b *gatewayBench) {
				conn, _ := b.client()
				conn.Say("?")
				if got := conn.Hear(); !strings.Contains(got, "Internal server error") {
					b.t.Errorf("heard %d bytes: %.100s", len(got), got)
				}
			},
		},
	}
}

func timeLimits() map[string]gatewayLimit {
	hang := func(route string) func(wsEvent) (wsAnswer, error) {
		return func(e wsEvent) (wsAnswer, error) {
			if e.RequestContext.RouteKey == route {
				<-time.After(time.Minute)
			}
			return wsAnswer{StatusCode: 200, Body: "late"}, nil
		}
	}
	within := func(b *gatewayBench, since time.Time, want time.Duration) {
		b.t.Helper()
		if took := time.Since(since); took != want {
			b.t.Errorf("after %v, want %v", took, want)
		}
	}
	return map[string]gatewayLimit{
		"10 min of silence close with 1001": {check: func(b *gatewayBench) {
			conn, _ := b.client()
			start := time.Now()
			if end := conn.End(); end.Code != 1001 {
				b.t.Errorf("close = %+v", end)
			}
			within(b, start, 10*time.Minute)
		}},
		"2 h of age close with 1001": {check: func(b *gatewayBench) {
			conn, _ := b.client()
			start := time.Now()
			ctx, stop := context.WithCancel(b.t.Context())
			defer stop()
			go func() {
				for conn.Write(ctx, websocket.MessageText, []byte("busy")) == nil {
					<-time.After(9 * time.Minute)
				}
			}()
			if end := conn.End(); end.Code != 1001 {
				b.t.Errorf("close = %+v", end)
			}
			within(b, start, 2*time.Hour)
			<-time.After(9 * time.Minute) // the writer's end
		}},
		"integration of $default takes 29 s at most": {handle: hang("$default"), check: func(b *gatewayBench) {
			conn, _ := b.client()
			start := time.Now()
			conn.Say("?")
			if got := conn.Hear(); !strings.Contains(got, "Endpoint request timed out") {
				b.t.Errorf("heard %s", got)
			}
			within(b, start, 29*time.Second)
			<-time.After(time.Minute)
		}},
		"integration of $connect takes 29 s at most": {handle: hang("$connect"), check: func(b *gatewayBench) {
			start := time.Now()
			if got := b.Refused("/" + b.Stage); got.Status != http.StatusGatewayTimeout {
				b.t.Errorf("got %v", got)
			}
			within(b, start, 29*time.Second)
			<-time.After(time.Minute)
		}},
	}
}

func orderLimits() map[string]gatewayLimit {
	return map[string]gatewayLimit{
		"messages of one connection are handled at once and in no order": {
			// The first is answered only when the second has been.
			handle: onMessage(func(e wsEvent) (wsAnswer, error) {
				if e.Body == "first" {
					<-time.After(time.Second)
				}
				return echo(e)
			}),
			check: func(b *gatewayBench) {
				conn, _ := b.client()
				conn.Say("first")
				conn.Say("second")
				if got := conn.Hear() + " " + conn.Hear(); got != "second first" {
					b.t.Errorf("answered in the order %s", got)
				}
			},
		},
	}
}

func postLimits() map[string]gatewayLimit {
	gone := func(do func(localtest.Connections, string) error) gatewayLimit {
		return gatewayLimit{check: func(b *gatewayBench) {
			conn, id := b.client()
			_ = conn.CloseNow()
			synctest.Wait()
			if err := do(b.sdk(), id); !localtest.IsError[*types.GoneException](err) {
				b.t.Errorf("error = %v, want 410", err)
			}
		}}
	}
	return map[string]gatewayLimit{
		"POST to a gone connection is 410":   gone(func(s localtest.Connections, id string) error { return s.Post(id, "x") }),
		"DELETE of a gone connection is 410": gone(localtest.Connections.Delete),
		"GET of a gone connection is 410": gone(func(s localtest.Connections, id string) error {
			_, err := s.Get(id)
			return err
		}),
		"POST over 128 KB is 413": {check: func(b *gatewayBench) {
			_, id := b.client()
			if err := b.sdk().Post(id, strings.Repeat("x", 128<<10+1)); !localtest.IsError[*types.PayloadTooLargeException](err) {
				b.t.Errorf("error = %v, want 413", err)
			}
		}},
		"POST to a full buffer is 429": {check: func(b *gatewayBench) {
			_, id := b.client()
			sdk, data := b.sdk(), strings.Repeat("x", 128<<10)
			var err error
			for sent := 0; err == nil && sent <= 1<<20; sent += len(data) {
				err = sdk.Post(id, data)
			}
			if !localtest.IsError[*types.LimitExceededException](err) {
				b.t.Errorf("error = %v, want 429", err)
			}
		}},
		"POST by another API's stage is 403": {check: func(b *gatewayBench) {
			_, id := b.client()
			err := localtest.NewConnections(b.t, "http://local/other", b.connections.Dial).Post(id, "x")
			if !localtest.IsError[*types.ForbiddenException](err) {
				b.t.Errorf("error = %v, want 403", err)
			}
		}},
	}
}

func connectLimits() map[string]gatewayLimit {
	given := func(protocol string) func(wsEvent) (wsAnswer, error) {
		return func(wsEvent) (wsAnswer, error) {
			return wsAnswer{StatusCode: 200, Headers: map[string]string{"Sec-WebSocket-Protocol": protocol}}, nil
		}
	}
	offered := func(want string) func(*gatewayBench) {
		return func(b *gatewayBench) {
			conn, err := b.Dial("/"+b.Stage, websocket.DialOptions{Subprotocols: []string{"mcp"}})
			if err != nil {
				b.t.Fatal(err)
			}
			if got := conn.Subprotocol(); got != want {
				b.t.Errorf("subprotocol = %q, want %q", got, want)
			}
		}
	}
	return map[string]gatewayLimit{
		"a subprotocol is not echoed by itself":    {check: offered("")},
		"a subprotocol is echoed when it is given": {handle: given("mcp"), check: offered("mcp")},
		"connection 501 in a second is 429": {check: func(b *gatewayBench) {
			for range 500 {
				b.client()
			}
			if got := b.Refused("/" + b.Stage); got.Status != http.StatusTooManyRequests {
				b.t.Errorf("got %v", got)
			}
		}},
		"a path below the stage is 403": {check: func(b *gatewayBench) {
			if got := b.Refused("/" + b.Stage + "/one"); got.Status != http.StatusForbidden {
				b.t.Errorf("got %v", got)
			}
		}},
		"a connection that $connect refuses never was": {
			handle: func(wsEvent) (wsAnswer, error) { return wsAnswer{StatusCode: 401}, nil },
			check: func(b *gatewayBench) {
				if got := b.Refused("/" + b.Stage); got.Status != http.StatusUnauthorized {
					b.t.Errorf("got %v", got)
				}
				id := b.fn.route("$connect")[0].RequestContext.ConnectionID
				if err := b.sdk().Post(id, "x"); !localtest.IsError[*types.GoneException](err) {
					b.t.Errorf("post: error = %v, want 410", err)
				}
			},
		},
	}
}

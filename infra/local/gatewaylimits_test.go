package local

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/apigatewaymanagementapi/types"
	"github.com/coder/websocket"
)

// gatewayLimit is something API Gateway refuses, or does not promise. Nothing is
// shortened: the figures are AWS's, and the time is virtual.
type gatewayLimit struct {
	handle func(wsEvent) (wsAnswer, error) // nil: echo
	change func(*WebSocketConfig)
	check  func(*wsBench)
}

// TestBothWebSocketAPIsRefuseWhatAWSRefuses holds the two APIs that Run opens, as it
// opens them, to every limit by its name.
func TestBothWebSocketAPIsRefuseWhatAWSRefuses(t *testing.T) {
	apis := map[string]func(Invoker, *slog.Logger) WebSocketConfig{"runners": relayAPI, "clients": socketAPI}
	for api, config := range apis {
		for name, limit := range gatewayLimits() {
			t.Run(api+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					handle := limit.handle
					if handle == nil {
						handle = echo
					}
					limit.check(newWSBench(t, handle, func(c *WebSocketConfig) {
						*c = config(c.Invoker, slog.New(slog.DiscardHandler))
						if limit.change != nil {
							limit.change(c)
						}
					}))
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
func closedFor(kind websocket.MessageType, code websocket.StatusCode, frames ...string) func(*wsBench) {
	return func(b *wsBench) {
		conn, _ := b.client()
		go func() {
			// The server may hang up in the middle.
			w, err := conn.Writer(b.t.Context(), kind)
			for _, f := range frames {
				if err == nil {
					_, err = io.WriteString(w, f)
				}
			}
			if err == nil {
				_ = w.Close()
			}
		}()
		if end := b.closeOf(conn); end.Code != code {
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
			check: func(b *wsBench) {
				conn, _ := b.client()
				b.say(conn, "?")
				if got := b.hear(conn); !strings.Contains(got, textInternal) {
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
	within := func(b *wsBench, since time.Time, want time.Duration) {
		b.t.Helper()
		if took := time.Since(since); took != want {
			b.t.Errorf("after %v, want %v", took, want)
		}
	}
	return map[string]gatewayLimit{
		"10 min of silence close with 1001": {check: func(b *wsBench) {
			conn, _ := b.client()
			start := time.Now()
			if end := b.closeOf(conn); end.Code != 1001 {
				b.t.Errorf("close = %+v", end)
			}
			within(b, start, 10*time.Minute)
		}},
		"2 h of age close with 1001": {check: func(b *wsBench) {
			conn, _ := b.client()
			start := time.Now()
			ctx, stop := context.WithCancel(b.t.Context())
			defer stop()
			go func() {
				for conn.Write(ctx, websocket.MessageText, []byte("busy")) == nil {
					<-time.After(9 * time.Minute)
				}
			}()
			if end := b.closeOf(conn); end.Code != 1001 {
				b.t.Errorf("close = %+v", end)
			}
			within(b, start, 2*time.Hour)
			<-time.After(9 * time.Minute) // the writer's end
		}},
		"integration of $default takes 29 s at most": {handle: hang("$default"), check: func(b *wsBench) {
			conn, _ := b.client()
			start := time.Now()
			b.say(conn, "?")
			if got := b.hear(conn); !strings.Contains(got, textTimeout) {
				b.t.Errorf("heard %s", got)
			}
			within(b, start, 29*time.Second)
			<-time.After(time.Minute)
		}},
		"integration of $connect takes 29 s at most": {handle: hang("$connect"), check: func(b *wsBench) {
			start := time.Now()
			if got := b.refused("/" + b.cfg.Stage); got.status != http.StatusGatewayTimeout {
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
			check: func(b *wsBench) {
				conn, _ := b.client()
				b.say(conn, "first")
				b.say(conn, "second")
				if got := b.hear(conn) + " " + b.hear(conn); got != "second first" {
					b.t.Errorf("answered in the order %s", got)
				}
			},
		},
		"$disconnect may be lost": {
			change: func(c *WebSocketConfig) { c.DropDisconnect = true },
			check: func(b *wsBench) {
				conn, _ := b.client()
				_ = conn.CloseNow()
				synctest.Wait()
				if n := len(b.fn.route("$disconnect")); n != 0 {
					b.t.Errorf("%d $disconnect events", n)
				}
			},
		},
	}
}

func postLimits() map[string]gatewayLimit {
	gone := func(do func(wsSDK, string) error) gatewayLimit {
		return gatewayLimit{check: func(b *wsBench) {
			conn, id := b.client()
			_ = conn.CloseNow()
			synctest.Wait()
			if err := do(b.sdk(), id); !isError[*types.GoneException](err) {
				b.t.Errorf("error = %v, want 410", err)
			}
		}}
	}
	return map[string]gatewayLimit{
		"POST to a gone connection is 410":   gone(func(s wsSDK, id string) error { return s.post(id, "x") }),
		"DELETE of a gone connection is 410": gone(wsSDK.delete),
		"GET of a gone connection is 410": gone(func(s wsSDK, id string) error {
			_, err := s.get(id)
			return err
		}),
		"POST over 128 KB is 413": {check: func(b *wsBench) {
			_, id := b.client()
			if err := b.sdk().post(id, strings.Repeat("x", 128<<10+1)); !isError[*types.PayloadTooLargeException](err) {
				b.t.Errorf("error = %v, want 413", err)
			}
		}},
		"POST to a full buffer is 429": {check: func(b *wsBench) {
			_, id := b.client()
			sdk, data := b.sdk(), strings.Repeat("x", 128<<10)
			var err error
			for sent := 0; err == nil && sent <= 1<<20; sent += len(data) {
				err = sdk.post(id, data)
			}
			if !isError[*types.LimitExceededException](err) {
				b.t.Errorf("error = %v, want 429", err)
			}
		}},
		"POST by another API's stage is 403": {check: func(b *wsBench) {
			_, id := b.client()
			err := newWSSDK(b.t, "other", b.connections.dial).post(id, "x")
			if !isError[*types.ForbiddenException](err) {
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
	offered := func(want string) func(*wsBench) {
		return func(b *wsBench) {
			conn, err := b.dial("/"+b.cfg.Stage, websocket.DialOptions{Subprotocols: []string{"mcp"}})
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
		"connection 501 in a second is 429": {check: func(b *wsBench) {
			for range 500 {
				b.client()
			}
			if got := b.refused("/" + b.cfg.Stage); got.status != http.StatusTooManyRequests {
				b.t.Errorf("got %v", got)
			}
		}},
		"a path below the stage is 403": {check: func(b *wsBench) {
			if got := b.refused("/" + b.cfg.Stage + "/one"); got.status != http.StatusForbidden {
				b.t.Errorf("got %v", got)
			}
		}},
		"a connection that $connect refuses never was": {
			handle: func(wsEvent) (wsAnswer, error) { return wsAnswer{StatusCode: 401}, nil },
			check: func(b *wsBench) {
				if got := b.refused("/" + b.cfg.Stage); got.status != http.StatusUnauthorized {
					b.t.Errorf("got %v", got)
				}
				id := b.fn.route("$connect")[0].RequestContext.ConnectionID
				if err := b.sdk().post(id, "x"); !isError[*types.GoneException](err) {
					b.t.Errorf("post: error = %v, want 410", err)
				}
			},
		},
	}
}

func TestConnectionsOfTwoAPIsShareAnEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWSBench(t, echo, func(c *WebSocketConfig) { c.Stage = "one" })
		other, err := NewWebSocketAPI(socketAPI(b.fn, nil))
		if err != nil {
			t.Fatal(err)
		}
		both := newPipeListener()
		b.serve(both, connectionsOf{b.WebSocketAPI, other})
		conn, id := b.client()
		if err := newWSSDK(t, "one", both.dial).post(id, "hello"); err != nil {
			t.Fatal(err)
		}
		if got := b.hear(conn); got != "hello" {
			t.Errorf("heard %q", got)
		}
		if err := newWSSDK(t, socketStage, both.dial).post(id, "x"); !isError[*types.GoneException](err) {
			t.Errorf("by the other's stage: error = %v, want 410", err)
		}
		if err := newWSSDK(t, "third", both.dial).post(id, "x"); !isError[*types.ForbiddenException](err) {
			t.Errorf("by nobody's stage: error = %v, want 403", err)
		}
	})
}

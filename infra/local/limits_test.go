package local

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/apigw"
	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// echoing are routes that send each message back. They answer "hang" as late as the limits
// allow.
type echoing struct{}

func (*echoing) Connect(ctx context.Context, _ sockets.Conn, r *http.Request) sockets.Reply {
	if r.URL.RawQuery == "hang" {
		<-ctx.Done()
		return sockets.Reply{Status: http.StatusGatewayTimeout}
	}
	return sockets.Reply{Status: http.StatusOK}
}

func (*echoing) Message(ctx context.Context, _ sockets.Conn, data []byte) []byte {
	if string(data) == "hang" {
		<-ctx.Done()
	}
	return data
}

func (*echoing) Disconnect(context.Context, sockets.Conn, int, string) {}

// eachAPI runs a test with both APIs that a machine opens, in virtual time. The tests of
// package sockets check the effect of each limit.
func eachAPI(t *testing.T, cfg Config, limits sockets.Limits, elsewhere string, test func(t *testing.T, w localtest.WebSockets)) {
	for _, which := range []string{"runners", "clients"} {
		t.Run(which, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, e := unstarted(t, cfg), &echoing{}
				m.openSockets(e, e, limits, elsewhere)
				api, stage := m.relay, relayStage
				if which == "clients" {
					api, stage = m.socket, socketStage
				}
				t.Cleanup(func() {
					ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
					cancel() // cuts connections that a test left open
					_ = api.Close(ctx)
				})
				test(t, localtest.WebSockets{T: t, API: localtest.Serve(t, api), Stage: stage})
			})
		})
	}
}

func TestBothWebSocketAPIsHaveTheLimitsOfTheirConfiguration(t *testing.T) {
	for name, want := range map[string]struct {
		limits            sockets.Limits
		frame             int
		route, idle, life time.Duration
	}{
		"aws":  {apigw.Limits(), 32 << 10, 29 * time.Second, 10 * time.Minute, 2 * time.Hour},
		"home": {sockets.Home(), 128 << 10, 15 * time.Minute, 24 * time.Hour, 30 * 24 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			eachAPI(t, Config{}, want.limits, "", func(t *testing.T, w localtest.WebSockets) {
				within := func(what string, limit time.Duration, do func()) {
					begun := time.Now()
					if do(); time.Since(begun) != limit {
						t.Errorf("%s after %v, want %v", what, time.Since(begun), limit)
					}
				}
				largest := strings.Repeat("x", want.frame)
				conn := w.Open()
				go conn.SayFrames(websocket.MessageText, largest)
				if got := conn.Hear(); got != largest {
					t.Errorf("of a frame of %d bytes %d came back", len(largest), len(got))
				}
				go conn.SayFrames(websocket.MessageText, largest+"x")
				if end := conn.End(); end.Code != websocket.StatusMessageTooBig {
					t.Errorf("a frame over the limit closes with %v", end)
				}
				within("$connect is given up", storage.ConnectTimeout, func() { _ = w.Refused("/" + w.Stage + "?hang") })
				within("silence closes", want.idle, func() { _ = w.Open().End() })
				if want.route < want.idle {
					conn := w.Open()
					within("$default is given up", want.route, func() { conn.Say("hang"); conn.Hear() })
				}
				within("age closes", want.life, func() {
					conn := w.Open()
					stop := make(chan struct{})
					defer close(stop)
					go func() {
						for {
							select {
							case <-time.After(want.idle - time.Second):
								_ = conn.Write(t.Context(), websocket.MessageText, []byte("busy")) // until it is closed
							case <-stop:
								return
							}
						}
					}()
					_ = conn.End()
				})
			})
		})
	}
}

func TestAHomeHandles256MessagesOfAConnectionAtOnce(t *testing.T) {
	commontest.EqualIn(t, "messages of one connection are handled at once", 256, sockets.Home().InWork)
}

// A person who opens the address of clients in a browser, or gives it to an HTTP client,
// learns what it is for. The address of runners answers as AWS does.
func TestAnotherPathOfTheWebSocketAddressSaysWhatTheAddressIsFor(t *testing.T) {
	const forbidden = `{"message":"Forbidden"}`
	for elsewhere, clients := range map[string]string{socketsOnly: "WebSockets only, at /local?server=NAME", "": forbidden} {
		eachAPI(t, Config{}, sockets.Home(), elsewhere, func(t *testing.T, w localtest.WebSockets) {
			want := map[string]string{socketStage: clients, relayStage: forbidden}[w.Stage]
			if got := w.Refused("/echo/mcp"); got.Status != http.StatusForbidden || !strings.Contains(got.Body, want) {
				t.Errorf("%q elsewhere: %+v, want %s", elsewhere, got, want)
			}
		})
	}
}

package local

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"
)

func TestMessageEventIsThatOfAPIGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWSBench(t, echo, nil)
		conn, id := b.client()
		time.Sleep(time.Second)
		b.say(conn, `{"id": 9007199254740993}`)
		b.hear(conn)
		got := b.fn.route("$default")[0]
		if got.Body != `{"id": 9007199254740993}` || got.IsBase64Encoded || got.Headers != nil || got.QueryStringParameters != nil {
			t.Errorf("event = %+v", got)
		}
		ctx := got.RequestContext
		if ctx.EventType != "MESSAGE" || ctx.ConnectionID != id || ctx.ConnectedAt != 946684800000 || ctx.RequestTimeEpoch != 946684801000 {
			t.Errorf("context = %+v", ctx)
		}
		if m, _ := ctx.MessageID.(string); !isGatewayID(m) || m == ctx.RequestID {
			t.Errorf("message id = %v", ctx.MessageID)
		}
	})
}

func TestARouteAnswerGoesBackOnTheConnection(t *testing.T) {
	answers := map[string]wsAnswer{
		"plain":   {StatusCode: 200, Body: "yes"},
		"created": {StatusCode: 201, Body: "yes"},
		"base64":  {StatusCode: 200, Body: base64.StdEncoding.EncodeToString([]byte("yes")), IsBase64Encoded: true},
	}
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newWSBench(t, onMessage(func(wsEvent) (wsAnswer, error) { return answer, nil }), nil)
				conn, _ := b.client()
				b.say(conn, "?")
				if got := b.hear(conn); got != "yes" {
					t.Errorf("heard %q", got)
				}
			})
		})
	}
}

func TestAnEmptyRouteAnswerSendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWSBench(t, onMessage(func(e wsEvent) (wsAnswer, error) {
			if e.Body == "quiet" {
				return wsAnswer{StatusCode: 200}, nil
			}
			return echo(e)
		}), nil)
		conn, _ := b.client()
		b.say(conn, "quiet")
		synctest.Wait()
		b.say(conn, "loud")
		if got := b.hear(conn); got != "loud" {
			t.Errorf("heard %q", got)
		}
	})
}

func TestAFailedRouteIsToldToTheClient(t *testing.T) {
	tests := map[string]struct {
		answer wsAnswer
		err    error
		text   string
	}{
		"function failed": {wsAnswer{}, &FunctionError{Type: ErrorExit}, textInternal},
		"throttled":       {wsAnswer{}, ErrThrottled, textInternal},
		"status 500":      {wsAnswer{StatusCode: 500, Body: "secret"}, nil, textInternal},
		"no status":       {wsAnswer{Body: "lost"}, nil, textInternal},
		"too long":        {wsAnswer{StatusCode: 200, Body: strings.Repeat("x", 128<<10+1)}, nil, textInternal},
		"bad base64":      {wsAnswer{StatusCode: 200, Body: "%", IsBase64Encoded: true}, nil, textInternal},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newWSBench(t, onMessage(func(wsEvent) (wsAnswer, error) { return test.answer, test.err }), nil)
				conn, id := b.client()
				b.say(conn, "?")
				got := b.hear(conn)
				request := b.fn.route("$default")[0].RequestContext.RequestID
				want := fmt.Sprintf(`{"message": %q, "connectionId":%q, "requestId":%q}`, test.text, id, request)
				if got != want {
					t.Errorf("heard %s, want %s", got, want)
				}
			})
		})
	}
}

func TestMessagesOfOneConnectionRunAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		second := make(chan struct{})
		b := newWSBench(t, onMessage(func(e wsEvent) (wsAnswer, error) {
			if e.Body == "first" {
				<-second
			} else {
				defer close(second)
			}
			return echo(e)
		}), nil)
		conn, _ := b.client()
		b.say(conn, "first")
		b.say(conn, "second")
		got := []string{b.hear(conn), b.hear(conn)}
		slices.Sort(got)
		if d := cmp.Diff([]string{"first", "second"}, got); d != "" {
			t.Error(d)
		}
	})
}

func TestShuffleReordersByItsSeed(t *testing.T) {
	order := func(seed uint64) (got []string) {
		synctest.Test(t, func(t *testing.T) {
			b := newWSBench(t, echo, func(c *WebSocketConfig) {
				c.Shuffle = &Shuffle{Seed: seed, MaxDelay: time.Second}
			})
			conn, _ := b.client()
			for i := range 20 {
				b.say(conn, fmt.Sprint(i))
			}
			for range 20 {
				got = append(got, b.hear(conn))
			}
		})
		return got
	}
	first, again, other := order(1), order(1), order(2)
	if d := cmp.Diff(first, again); d != "" {
		t.Errorf("one seed, two orders:\n%s", d)
	}
	if cmp.Equal(first, other) {
		t.Error("two seeds, one order")
	}
}

func TestSizesUpToTheLimitsPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWSBench(t, echo, nil)
		conn, _ := b.client()
		frame := strings.Repeat("f", 32<<10)
		w, err := conn.Writer(t.Context(), websocket.MessageText)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			if _, err := io.WriteString(w, frame); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if got := b.hear(conn); got != strings.Repeat(frame, 4) {
			t.Errorf("heard %d bytes", len(got))
		}
	})
}

func TestWhatIsOverALimitClosesTheConnection(t *testing.T) {
	tests := map[string]struct {
		kind   websocket.MessageType
		frames []string
		want   closing
	}{
		"frame":       {websocket.MessageText, []string{strings.Repeat("x", 32<<10+1)}, tooBig},
		"later frame": {websocket.MessageText, []string{"x", strings.Repeat("x", 40<<10)}, tooBig},
		"message":     {websocket.MessageText, slices.Repeat([]string{strings.Repeat("x", 26<<10)}, 6), tooBig},
		"binary":      {websocket.MessageBinary, []string{"x"}, binaryMessage},
		"not UTF-8":   {websocket.MessageText, []string{"\xff"}, brokenText},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newWSBench(t, echo, nil)
				conn, _ := b.client()
				go func() {
					// The server may hang up in the middle.
					w, err := conn.Writer(t.Context(), test.kind)
					for _, f := range test.frames {
						if err == nil {
							_, err = io.WriteString(w, f)
						}
					}
					if err == nil {
						_ = w.Close()
					}
				}()
				if end := b.closeOf(conn); end.Code != test.want.code || end.Reason != test.want.reason {
					t.Errorf("close = %+v, want %+v", end, test.want)
				}
				if code, _ := b.disconnect(); code != int64(test.want.code) {
					t.Errorf("$disconnect with %d", code)
				}
				if n := len(b.fn.route("$default")); n != 0 {
					t.Error("the function got the message")
				}
			})
		})
	}
}

func TestMessagesInEitherDirectionKeepAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWSBench(t, onMessage(func(wsEvent) (wsAnswer, error) { return wsAnswer{StatusCode: 200}, nil }), nil)
		conn, id := b.client()
		time.Sleep(9 * time.Minute)
		b.say(conn, "in")
		time.Sleep(9 * time.Minute)
		c, ok := b.find(id)
		if !ok {
			t.Fatal("closed although a message came in")
		}
		if err := c.send([]byte("out")); err != nil {
			t.Fatal(err)
		}
		b.hear(conn)
		start := time.Now()
		_ = b.closeOf(conn)
		if took := time.Since(start); took != 10*time.Minute {
			t.Errorf("closed %v after the last message", took)
		}
	})
}

func TestPingsDoNotKeepAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWSBench(t, echo, nil)
		conn, _ := b.client()
		ctx := conn.CloseRead(t.Context())
		start := time.Now()
		go func() {
			for conn.Ping(ctx) == nil {
				select {
				case <-time.After(time.Minute):
				case <-ctx.Done():
				}
			}
		}()
		<-ctx.Done()
		if took := time.Since(start); took != 10*time.Minute {
			t.Errorf("closed after %v", took)
		}
	})
}

func TestDisconnectSaysHowTheClientLeft(t *testing.T) {
	tests := map[string]struct {
		leave  func(*websocket.Conn) error
		code   int64
		reason string
	}{
		"own code":  {func(c *websocket.Conn) error { return c.Close(4001, "bored") }, 4001, "bored"},
		"no status": {func(c *websocket.Conn) error { return c.Close(websocket.StatusNoStatusRcvd, "") }, 1005, "Client-side close frame status not set"},
		"cut off":   {func(c *websocket.Conn) error { return c.CloseNow() }, 1006, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newWSBench(t, echo, nil)
				conn, id := b.client()
				_ = test.leave(conn)
				if code, reason := b.disconnect(); code != test.code || reason != test.reason {
					t.Errorf("$disconnect with %d %q, want %d %q", code, reason, test.code, test.reason)
				}
				e := b.fn.route("$disconnect")[0]
				if e.RequestContext.ConnectionID != id || e.RequestContext.EventType != "DISCONNECT" || e.Headers["Host"] != "gateway.test" {
					t.Errorf("event = %+v", e)
				}
			})
		})
	}
}

// rawClient opens a connection by hand, with early sent right behind the request.
func rawClient(b *wsBench, early []byte) (net.Conn, *bufio.Reader) {
	b.t.Helper()
	conn, err := b.clients.dial(b.t.Context(), "", "")
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	request := "GET /prod HTTP/1.1\r\nHost: gateway.test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
	go func() { _, _ = conn.Write(append([]byte(request), early...)) }()
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		b.t.Fatalf("upgrade: %v, %v", res, err)
	}
	_ = res.Body.Close()
	return conn, r
}

// maskedFrame is a client's frame with a mask of zeros, so that its payload is
// readable.
func maskedFrame(first byte, payload []byte) []byte {
	f := []byte{first}
	switch n := len(payload); {
	case n < 126:
		f = append(f, 0x80|byte(n))
	case n < 1<<16:
		f = append(f, 0x80|126, byte(n>>8), byte(n))
	default:
		f = append(f, 0x80|127, 0, 0, 0, 0, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	return append(append(f, 0, 0, 0, 0), payload...)
}

func TestFramesSentWithTheUpgradeRequestAreNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWSBench(t, echo, nil)
		_, r := rawClient(b, append(maskedFrame(0x81, []byte("early")), maskedFrame(0x81, []byte("bird"))...))
		got := make([]byte, 2+5+2+4)
		if _, err := io.ReadFull(r, got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(got, []byte("early")) || !bytes.Contains(got, []byte("bird")) {
			t.Errorf("got %q", got)
		}
	})
}

func TestLongMessagesGoOutInFramesOf32KB(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWSBench(t, onMessage(func(wsEvent) (wsAnswer, error) {
			return wsAnswer{StatusCode: 200, Body: strings.Repeat("x", 100_000)}, nil
		}), nil)
		_, r := rawClient(b, maskedFrame(0x81, []byte("?")))
		guard := &frameGuard{from: r, limit: 32 << 10}
		var total uint64
		for final := false; !final; {
			first, err := r.Peek(1)
			if err != nil {
				t.Fatal(err)
			}
			final = first[0]&0x80 != 0
			header, payload, err := guard.nextFrame()
			if err != nil || payload > guard.limit {
				t.Fatalf("a frame of %d bytes, %v", payload, err)
			}
			if _, err := r.Discard(int(header + payload)); err != nil {
				t.Fatal(err)
			}
			total += payload
		}
		if total != 100_000 {
			t.Errorf("%d bytes in all", total)
		}
	})
}

func TestTheCloseFrameReachesAClientThatSendsTooMuchOverTCP(t *testing.T) {
	b := newWSBench(t, echo, nil)
	srv := httptest.NewServer(b.WebSocketAPI)
	defer srv.Close()
	conn, _, err := websocket.Dial(t.Context(), srv.URL+"/prod", nil) //nolint:bodyclose // nothing to close after an upgrade
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseNow() }()
	if err := conn.Write(t.Context(), websocket.MessageText, make([]byte, 4<<20)); err != nil {
		t.Fatal(err)
	}
	if end := b.closeOf(conn); end.Code != websocket.StatusMessageTooBig {
		t.Errorf("close = %+v", end)
	}
}

package sockets

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestWhatIsOverALimitClosesTheConnection(t *testing.T) {
	tests := map[string]struct {
		kind   websocket.MessageType
		frames []string
		want   closing
	}{
		"message":   {websocket.MessageText, slices.Repeat([]string{strings.Repeat("x", 26<<10)}, 6), tooBig},
		"binary":    {websocket.MessageBinary, []string{"x"}, binaryMessage},
		"not UTF-8": {websocket.MessageText, []string{"\xff"}, brokenText},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, nil)
				conn, _ := b.client()
				go conn.SayFrames(test.kind, test.frames...)
				if end := conn.End(); end.Code != test.want.code || end.Reason != test.want.reason {
					t.Errorf("close = %+v, want %+v", end, test.want)
				}
				commontest.EqualIn(t, "the routes were told", int(test.want.code), b.end().code)
				if _, messages, _ := b.routes.told(); messages != 0 {
					t.Error("the routes got the message")
				}
			})
		})
	}
}

// A message in either direction keeps a connection open, until it is too old.
func TestSilenceAndAgeCloseAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		b.routes.message = func(context.Context, string) string { return "" }
		conn, id := b.client()
		time.Sleep(9 * time.Minute)
		conn.Say("in")
		time.Sleep(9 * time.Minute)
		commontest.OKIn(t, "closed although a message came in", b.Post(t.Context(), id, []byte("out")))
		conn.Hear()
		start := time.Now()
		_ = conn.End()
		commontest.EqualIn(t, "closed after silence of", 10*time.Minute, time.Since(start))
		start = time.Now()
		conn, _ = b.client()
		go func() {
			for conn.Write(t.Context(), websocket.MessageText, []byte("busy")) == nil {
				time.Sleep(9 * time.Minute)
			}
		}()
		_ = conn.End()
		commontest.EqualIn(t, "closed at the age of", 2*time.Hour, time.Since(start))
		time.Sleep(9 * time.Minute) // the writer ends
	})
}

func TestRoutesAreToldHowTheClientLeft(t *testing.T) {
	tests := map[string]struct {
		leave  func(*websocket.Conn) error
		code   int
		reason string
	}{
		"own code":  {func(c *websocket.Conn) error { return c.Close(4001, "bored") }, 4001, "bored"},
		"no status": {func(c *websocket.Conn) error { return c.Close(websocket.StatusNoStatusRcvd, "") }, 1005, "Client-side close frame status not set"},
		"cut off":   {func(c *websocket.Conn) error { return c.CloseNow() }, 1006, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, nil)
				conn, id := b.client()
				_ = test.leave(conn.Conn)
				if got, want := b.end(), (ending{id, test.code, test.reason}); got != want {
					t.Errorf("the routes were told %+v, want %+v", got, want)
				}
			})
		})
	}
}

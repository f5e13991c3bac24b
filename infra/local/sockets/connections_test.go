package sockets

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestPostsArriveInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		conn, id := b.client()
		for i := range 50 {
			commontest.OK(t, b.post(id, fmt.Sprint(i)))
		}
		for i := range 50 {
			if got := conn.Hear(); got != fmt.Sprint(i) {
				t.Fatalf("message %d is %q", i, got)
			}
		}
	})
}

func TestAPostToAClosedConnectionIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		conn, id := b.client()
		_ = conn.Close(websocket.StatusNormalClosure, "")
		synctest.Wait()
		b.Disconnect(id)
		for name, err := range map[string]error{"post": b.post(id, "x"), "never was": b.post(awsapi.NewID(), "x")} {
			if !errors.Is(err, storage.Closed) {
				t.Errorf("%s: error = %v", name, err)
			}
		}
	})
}

func TestAPostWithinConnectIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		var within error
		b.routes.connect = func(c Conn, _ *http.Request) Reply {
			within = b.post(c.ID, "too soon")
			return Reply{Status: http.StatusOK}
		}
		b.client()
		if !errors.Is(within, storage.Closed) {
			t.Errorf("error = %v", within)
		}
	})
}

func TestAPostOf128KBPassesAndOneByteMoreDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		conn, id := b.client()
		if err := b.post(id, strings.Repeat("x", 131_073)); !errors.Is(err, storage.TooLarge) {
			t.Errorf("131,073 bytes: error = %v", err)
		}
		commontest.OKIn(t, "131,072 bytes", b.post(id, strings.Repeat("x", 131_072)))
		if got := conn.Hear(); len(got) != 131_072 {
			t.Errorf("heard %d bytes", len(got))
		}
	})
}

func TestAClientThatDoesNotReadFillsItsBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config) { c.Limits.SendBuffer = 200_000 })
		conn, id := b.client()
		data := strings.Repeat("x", 100_000)
		for range 2 {
			commontest.OK(t, b.post(id, data))
		}
		if err := b.post(id, data); !errors.Is(err, storage.Unavailable) {
			t.Errorf("error = %v", err)
		}
		conn.Hear()
		conn.Hear()
		synctest.Wait()
		commontest.CheckIn(t, "after the client has read", b.post(id, data))
	})
}

func TestDeleteClosesTheConnectionAfterWhatWasPosted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		conn, id := b.client()
		commontest.OK(t, b.post(id, "last words"))
		b.Disconnect(id)
		if err := b.post(id, "too late"); !errors.Is(err, storage.Closed) {
			t.Errorf("post after delete: %v", err)
		}
		commontest.EqualIn(t, "heard", "last words", conn.Hear())
		if end := conn.End(); end.Code != websocket.StatusNormalClosure {
			t.Errorf("close = %+v", end)
		}
		if end := b.end(); end.code != 1000 || end.reason != "Connection Closed Normally" {
			t.Errorf("the routes were told %+v", end)
		}
	})
}

func TestAClientThatDoesNotReadCannotHoldUpTheClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		_, id := b.client()
		commontest.OK(t, b.post(id, "stuck"))
		b.Disconnect(id)
		time.Sleep(flushTime) // virtual
		if end := b.end(); end.code != 1000 {
			t.Errorf("the routes were told %+v", end)
		}
	})
}

package sockets

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/coder/websocket"

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
		commontest.EqualIn(t, "close", websocket.StatusNormalClosure, conn.End().Code)
		if end := b.end(); end.code != 1000 || end.reason != "Connection Closed Normally" {
			t.Errorf("the routes were told %+v", end)
		}
	})
}

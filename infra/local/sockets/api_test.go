package sockets

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestOpenedIsCalledWhenPostsAreTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		b.routes.connect = func(c Conn, _ *http.Request) Reply {
			commontest.EqualIn(t, "a post before the routes have decided", storage.Closed, storage.CodeOf(b.Post(t.Context(), c.ID, []byte("too soon"))))
			return Reply{Status: http.StatusOK, Opened: func() {
				commontest.Check(t, b.Post(t.Context(), c.ID, []byte("owed")))
			}}
		}
		conn, _ := b.client()
		commontest.EqualIn(t, "heard", "owed", conn.Hear())
	})
}

func TestCloseEndsAllConnectionsAndRefusesNewOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		one, _ := b.client()
		two, _ := b.client()
		closed := make(chan error, 1)
		go func() { closed <- b.Close(t.Context()) }()
		for _, conn := range []*localtest.WebSocket{one, two} {
			commontest.EqualIn(t, "close", websocket.StatusGoingAway, conn.End().Code)
		}
		commontest.Check(t, <-closed)
		if _, _, ends := b.routes.told(); ends != 2 {
			t.Errorf("the routes were told of %d ends when Close returned, want 2", ends)
		}
		commontest.EqualIn(t, "after close", http.StatusServiceUnavailable, b.Refused("/prod").Status)
	})
}

func TestCloseCutsWhatDoesNotEndInTime(t *testing.T) {
	for name, test := range map[string]struct {
		hang func(context.Context, <-chan struct{})
		took time.Duration
	}{
		"a route that ends with its context": {func(ctx context.Context, _ <-chan struct{}) { <-ctx.Done() }, time.Second},
		"a route that never ends":            {func(_ context.Context, release <-chan struct{}) { <-release }, time.Second + cutTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				defer close(release)
				b := newBench(t, nil)
				b.routes.message = func(ctx context.Context, _ string) string { test.hang(ctx, release); return "" }
				conn, _ := b.client()
				conn.Say("hangs")
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				start := time.Now()
				if err := b.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("error = %v", err)
				}
				commontest.EqualIn(t, "it took", test.took, time.Since(start))
			})
		})
	}
}

package sockets

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sync/semaphore"

	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// The API reads no message beyond those that its routes handle. The client's pipe has no
// buffer, so the client cannot send more than the API reads.
func TestMessagesBeyondThoseInWorkAreNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config) { c.Limits.InWork = 2 })
		release := make(chan struct{})
		b.routes.message = func(_ context.Context, m string) string { <-release; return m }
		conn, _ := b.client()
		var sent atomic.Int64
		go func() {
			for n := range 10 {
				conn.Say(fmt.Sprint(n))
				sent.Add(1)
			}
		}()
		heard := map[string]bool{}
		for done := range 10 {
			synctest.Wait()
			if _, messages, _ := b.routes.told(); messages != min(done+2, 10) || sent.Load() != int64(messages) {
				t.Errorf("%d messages are done, %d in the hands of the routes, %d were sent", done, messages, sent.Load())
			}
			release <- struct{}{}
			heard[conn.Hear()] = true
		}
		commontest.EqualIn(t, "answers", 10, len(heard))
	})
}

// full opens a connection whose client does not read, and fills its buffer.
func (b *bench) full() (read func() string, id string) {
	b.t.Helper()
	conn, id := b.client()
	for range 2 {
		commontest.OK(b.t, b.Post(b.t.Context(), id, []byte(strings.Repeat("x", 100_000))))
	}
	return conn.Hear, id
}

func smallBuffer(c *Config) { c.Limits.SendBuffer = 200_000 }

func TestAPostWaitsForRoomForTwoSeconds(t *testing.T) {
	tests := map[string]struct {
		patience time.Duration // of the caller
		reads    time.Duration // time after which the client reads a message; 0: never
		took     time.Duration
		code     storage.Code
	}{
		"the client never reads":         {patience: time.Hour, took: 2 * time.Second, code: storage.Unavailable},
		"the client reads after a while": {patience: time.Hour, reads: time.Second, took: time.Second},
		"the client reads too late":      {patience: time.Hour, reads: 3 * time.Second, took: 2 * time.Second, code: storage.Unavailable},
		"the caller waits no longer":     {patience: time.Second, took: time.Second, code: storage.Unavailable},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, smallBuffer)
				read, id := b.full()
				if test.reads > 0 {
					time.AfterFunc(test.reads, func() { read() })
				}
				ctx, cancel := context.WithTimeout(t.Context(), test.patience)
				defer cancel()
				begun := time.Now()
				err := b.Post(ctx, id, []byte(strings.Repeat("x", 100_000)))
				if took := time.Since(begun); storage.CodeOf(err) != test.code || took != test.took {
					t.Errorf("after %v: %v; want %q after %v", took, err, test.code, test.took)
				}
				time.Sleep(time.Hour) // the client reads what it wanted to
			})
		})
	}
}

func TestAPostSaysWhyItIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		conn, id := b.client()
		commontest.EqualIn(t, "over the limit", storage.TooLarge, storage.CodeOf(b.Post(t.Context(), id, make([]byte, 128<<10+1))))
		commontest.OKIn(t, "at the limit", b.Post(t.Context(), id, make([]byte, 128<<10)))
		commontest.EqualIn(t, "bytes that were heard", 128<<10, len(conn.Hear()))
		commontest.EqualIn(t, "to nobody", storage.Closed, storage.CodeOf(b.Post(t.Context(), "nobody", nil)))
		_ = conn.CloseNow()
		synctest.Wait()
		commontest.EqualIn(t, "to one who left", storage.Closed, storage.CodeOf(b.Post(t.Context(), id, []byte("x"))))
		commontest.CheckIn(t, "close of one who left", (Clients{b.API}).Close(t.Context(), id))
	})
}

// A client that sends and does not read is read no further than its replies have room.
func TestAClientThatDoesNotReadIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config) { c.Limits = Home(); smallBuffer(c) })
		turns := semaphore.NewWeighted(2)
		b.routes.connect = func(Conn, *http.Request) Reply {
			return Reply{Status: http.StatusOK, Rooms: Rooms{Turns: turns}}
		}
		conn, _ := b.client()
		reply := strings.Repeat("x", 100_000)
		go func() {
			for range 50 {
				conn.Say(reply)
			}
		}()
		synctest.Wait()
		// Two replies fit, and two messages had their turn before the third reply had no room.
		if _, messages, _ := b.routes.told(); messages > 5 {
			t.Errorf("the routes got %d messages of a client that reads no reply", messages)
		}
		for range 50 {
			if got := conn.Hear(); got != reply {
				t.Fatalf("heard %d bytes", len(got))
			}
		}
	})
}

func TestAClientThatDoesNotReadIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, smallBuffer)
		b.full()
		time.Sleep(writeWithin + time.Second)
		commontest.EqualIn(t, "the routes were told", 1006, b.end().code)
	})
}

func TestAMessageThatDoesNotArriveCutsItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := semaphore.NewWeighted(1 << 20)
		b := newBench(t, func(c *Config) { c.Limits = Home() })
		b.routes.connect = func(Conn, *http.Request) Reply {
			return Reply{Status: http.StatusOK, Rooms: Rooms{In: in}}
		}
		conn, _ := b.client()
		w, err := conn.Writer(t.Context(), websocket.MessageText)
		commontest.OK(t, err)
		go func() { _, _ = w.Write(make([]byte, 10_000)) }() // and never ended
		time.Sleep(readWithin + time.Second)
		commontest.EqualIn(t, "the routes were told", 1006, b.end().code)
		commontest.EqualIn(t, "its room is free", true, in.TryAcquire(1<<20))
	})
}

// What connections of one caller hold in memory is bounded together, and does not hold up
// another caller. When they have ended, their room is free.
func TestConnectionsOfACallerShareItsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const room = 1 << 20
		in, out := semaphore.NewWeighted(room), semaphore.NewWeighted(room)
		b := newBench(t, func(c *Config) { c.Limits = Home() })
		greedy := true
		b.routes.connect = func(Conn, *http.Request) Reply {
			if greedy {
				return Reply{Status: http.StatusOK, Rooms: Rooms{In: in, Out: out}}
			}
			return Reply{Status: http.StatusOK}
		}
		message := strings.Repeat("x", 100_000)
		var all []*localtest.WebSocket
		for range 20 {
			conn, _ := b.client()
			all = append(all, conn)
			go func() {
				for range 30 {
					if conn.Write(t.Context(), websocket.MessageText, []byte(message)) != nil {
						return
					}
				}
			}()
		}
		synctest.Wait()
		if _, messages, _ := b.routes.told(); messages > 2*room/len(message) {
			t.Errorf("%d messages of %d bytes are in the hands of the routes or wait for clients, whose caller has room for %d bytes each", messages, len(message), room)
		}
		greedy = false
		other, _ := b.client()
		for range 20 {
			other.Say(message)
			if got := other.Hear(); got != message {
				t.Fatalf("another caller heard %d bytes", len(got))
			}
		}
		for _, conn := range all {
			_ = conn.CloseNow()
		}
		time.Sleep(time.Minute) // a writer may have a close frame to write
		if !in.TryAcquire(room) || !out.TryAcquire(room) {
			t.Error("the room of connections that have ended is not free")
		}
	})
}

// New messages of a caller are handled a few at a time, over all its connections. A message
// that takes long does not hold up others for longer than its turn.
func TestConnectionsOfACallerTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := semaphore.NewWeighted(2)
		b := newBench(t, nil)
		b.routes.connect = func(Conn, *http.Request) Reply {
			return Reply{Status: http.StatusOK, Rooms: Rooms{Turns: turns}}
		}
		b.routes.message = func(ctx context.Context, m string) string { <-ctx.Done(); return m }
		for range 6 {
			conn, _ := b.client()
			go func() { _ = conn.Write(t.Context(), websocket.MessageText, []byte("slow")) }()
		}
		for begun := 2; begun <= 6; begun += 2 {
			synctest.Wait()
			if _, messages, _ := b.routes.told(); messages != begun {
				t.Errorf("%d messages are handled, want %d", messages, begun)
			}
			time.Sleep(turnTime)
		}
	})
}

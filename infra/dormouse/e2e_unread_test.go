//go:build e2e

package dormouse_test

import (
	"cmp"
	"context"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// 300 WebSockets of one key send and read nothing. Dormouse then reads none of them further
// than their replies have room, so neither its memory grows nor another caller waits: the
// calls of another tenant all succeed, and in make chaos their p99 stays under three times
// that of the quiet machine, or of a second machine that nobody attacks: it shows what the
// senders themselves take of the processors. Afterwards the memory is free again.
func TestE2EWebSocketsThatNeverReadHoldUpNobody(t *testing.T) {
	const sockets = 300
	lasts, err := time.ParseDuration(cmp.Or(os.Getenv(greedyTime), "5s"))
	commontest.OK(t, err)
	m := newMachine(t, servers{"one": nil})
	m.programs = false // the limits of callers are those of dormouse itself
	m.start(append(sleepy(), "--access", "keys")...)
	key := m.keys("create", "deaf", "--all-servers")
	other := m.as(m.keys("create", "other", "--tenant", "other", "--all-servers"), "one")
	calm := newMachine(t, servers{"one": nil})
	calm.programs = false
	calm.start(sleepy()...)
	unharmed := calm.session("one")
	quiet := other.latencies(func(n int) bool { return n < 200 })
	before := m.taken()

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	var opened, sent atomic.Int64
	ping := []byte(`{"jsonrpc":"2.0","id":"` + strings.Repeat("x", 900) + `","method":"ping"}`)
	for range sockets {
		all.Go(func() {
			conn, _, err := websocket.Dial(ctx, m.ws["one"], &websocket.DialOptions{ //nolint:bodyclose // its documentation says that it never has to be
				Subprotocols: []string{"mcp"}, HTTPHeader: http.Header{"Authorization": {"Bearer " + key}},
			})
			if err != nil {
				t.Errorf("a WebSocket: %v", err)
				return
			}
			defer func() { _ = conn.CloseNow() }() // it has served
			opened.Add(1)
			for conn.Write(ctx, websocket.MessageText, ping) == nil {
				sent.Add(1)
			}
			<-ctx.Done()
		})
		<-time.After(3 * time.Millisecond) // 500 a second are let in
	}
	over := m.watch()
	until := time.Now().Add(lasts)
	var during, elsewhere []time.Duration
	all.Go(func() { elsewhere = unharmed.latencies(func(int) bool { return time.Now().Before(until) }) })
	during = other.latencies(func(int) bool { return time.Now().Before(until) })
	peak := over()
	cancel()
	all.Wait()
	if opened.Load() != sockets {
		t.Errorf("%d of %d WebSockets were opened", opened.Load(), sockets)
	}
	// Room for what one caller does not read, and for the goroutines and buffers of its
	// connections.
	if most := before.memory + 128<<20; peak.memory > most {
		t.Errorf("while %d WebSockets read nothing: %d MB, want at most %d", sockets, peak.memory>>20, most>>20)
	}
	if most := 3 * max(p99(quiet), p99(elsewhere)); os.Getenv(greedyTime) != "" && p99(during) > most {
		t.Errorf("another caller: p99 of %d calls %s, want at most %s", len(during), p99(during), most)
	}
	after := m.settled(taken{before.memory + 64<<20, before.files + restFiles, before.rows + sessionRows})
	t.Logf("%d WebSockets sent %d messages and read none; before: %s; at most: %s; after: %s", sockets, sent.Load(), before, peak, after)
	t.Logf("another caller: %d calls, p99 %s; quiet %s; of %d calls on another machine %s", len(during), p99(during), p99(quiet), len(elsewhere), p99(elsewhere))
}

package relay_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// TestPushOnce has WebSocket clients that read large amounts at 0 to 10 KB a second and
// lose their connections. In half of the worlds nothing else goes wrong: each event, and
// the end, comes once and in order. In the others functions die anywhere, also between the
// append, the posts and the ack. Only there an event may come twice.
//
//	go test ./shared/backend/relay -run PushOnce -sim.seed 1 -sim.seeds 5000 -v
func TestPushOnce(t *testing.T) {
	// 147: events are posted directly again while another function has the lease.
	simulate(t, worlds(5, []uint64{147}), func(w *world) {
		w.only(faults{})
		w.slowly = true
		if w.seed%2 == 0 {
			w.die = 0.1
		}
		w.addSockets()
	})
}

// simBuffer is the buffer of a gateway for a client that does not read. A message that the
// gateway has taken always arrives.
type simBuffer struct {
	bytes float64
	at    time.Time
}

const (
	simBufferSize     = 128 << 10
	simBufferPatience = 500 * time.Millisecond // a poster tries for so long
)

// room waits until the gateway takes size bytes for a connection.
func (g *simPeers) room(ctx context.Context, conn string, size int) error {
	begun := time.Now()
	for g.w.slowly && !g.w.calm.Load() {
		g.mu.Lock()
		p := g.peers[conn]
		if p == nil || !p.here {
			g.mu.Unlock()
			return nil
		}
		b := &p.buffer
		b.bytes = max(0, b.bytes-g.rate(conn)*time.Since(b.at).Seconds())
		b.at = time.Now()
		free := b.bytes == 0 || b.bytes+float64(size) <= simBufferSize
		if free {
			b.bytes += float64(size)
		}
		g.mu.Unlock()
		if free {
			return nil
		}
		if time.Since(begun) > simBufferPatience {
			return storage.Errorf(storage.Unavailable, "simulated: the client does not read")
		}
		if nap(ctx, 50*time.Millisecond) != nil {
			return unavailable("the function is over")
		}
	}
	return nil
}

// rate returns how many bytes a second a client reads at this moment. It changes every 20
// s.
func (g *simPeers) rate(conn string) float64 {
	window := time.Since(g.w.begun) / (20 * time.Second)
	rng := g.w.random(fmt.Sprintf("reading %s in %d", conn, window))
	return []float64{0, 100, 1 << 10, 3 << 10, 10 << 10}[rng.IntN(5)]
}

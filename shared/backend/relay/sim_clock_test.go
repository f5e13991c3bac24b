package relay_test

import (
	"context"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// TestClocks sets the wall clocks of hosts and runners wrong. In half of the worlds each
// clock is off for ever, by its own amount of up to 30 s in either direction. In the
// others all are set an hour or a day forward or back, and right again ten minutes later.
// Nothing may be executed twice, accepted requests must end, and no session may be lost.
// No error may make a client repeat a request that was executed.
//
//	go test ./shared/backend/relay -run Clocks -sim.seed 1 -sim.seeds 5000 -v
func TestClocks(t *testing.T) {
	simulate(t, worlds(2, nil), func(w *world) {
		w.only(faults{die: 0.05, kill: 10 * time.Minute, bootDies: 0.05})
		w.clock = newSimClock(w)
	})
}

// simClock says by how much the clock of each host is wrong.
type simClock struct {
	w        *world
	drift    bool
	jump     time.Duration
	from, to time.Duration
}

func newSimClock(w *world) *simClock {
	rng := w.random("clock")
	c := &simClock{w: w, drift: rng.IntN(2) == 0, jump: []time.Duration{-24 * time.Hour, -time.Hour, time.Hour, 24 * time.Hour}[rng.IntN(4)]}
	c.from = draw(rng, w.trouble)
	c.to = c.from + 10*time.Minute
	return c
}

// of returns by how much the clock of a host is ahead of the true time.
func (c *simClock) of(host string) func() time.Duration {
	if c == nil {
		return func() time.Duration { return 0 }
	}
	if c.drift {
		wrong := draw(c.w.random("clock of "+host), time.Minute) - 30*time.Second
		return func() time.Duration { return wrong }
	}
	return func() time.Duration {
		if now := time.Since(c.w.begun); now < c.from || now >= c.to {
			return 0
		}
		return c.jump
	}
}

// stamped returns a frame whose time of sending comes from another clock.
func (c *simClock) stamped(data []byte, by time.Duration) []byte {
	f, err := frametest.Decode(data)
	if c == nil || err != nil || f.Sent == 0 || by == 0 {
		return data
	}
	f.Sent += by.Milliseconds()
	return frametest.Encode(f)
}

func skewOf(ctx context.Context) time.Duration {
	if a := actorOf(ctx); a.skew != nil {
		return a.skew()
	}
	return 0
}

func shift(t *time.Time, by time.Duration) {
	if !t.IsZero() {
		*t = t.Add(by)
	}
}

// shiftBox, shiftItem and shiftSession return records with the times of another clock.
// They keep Expires, because a store deletes expired records by its own clock.
func shiftBox(b storage.Box, by time.Duration) storage.Box {
	shift(&b.Until, by)
	shift(&b.Changed, by)
	shift(&b.Failure.At, by)
	return b
}

func shiftItem(it storage.Item, by time.Duration) storage.Item {
	shift(&it.NotAfter, by)
	shift(&it.Created, by)
	return it
}

func shiftSession(s storage.Session, by time.Duration) storage.Session {
	if by == 0 {
		return s
	}
	s = s.Clone()
	shift(&s.Primary.Until, by)
	shift(&s.Pusher.Until, by)
	for i := range s.Standby {
		shift(&s.Standby[i].Until, by)
	}
	for i := range s.Pushed {
		shift(&s.Pushed[i].Since, by)
	}
	return s
}

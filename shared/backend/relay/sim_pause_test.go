package relay_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// foundOfPauses are seeds that showed a fault.
var foundOfPauses = [...]uint64{
	304342, // a $connect that had stood still succeeded after its connection was dropped as gone
}

// TestPauseAnything makes runners, relay functions and the functions that serve requests
// stand still for up to a minute, with all messages on their way to them. Every simulated
// world checks two more promises. No error makes a client repeat a request that was
// executed. Nothing is executed after its client was told that it will not be.
//
//	go test ./shared/backend/relay -run PauseAnything -sim.seed 1 -sim.seeds 5000 -v
func TestPauseAnything(t *testing.T) {
	simulate(t, worlds(2, foundOfPauses[:]), func(w *world) {
		w.only(faults{pauses: 0.01})
		if w.seed%2 == 0 {
			w.addSockets()
		}
	})
}

// standStill blocks a runner's end of a connection while its process stands still: once in
// every two minutes, for up to a minute.
func (c *simConn) standStill() {
	w := c.g.w
	if w.pauses == 0 || w.calm.Load() {
		return
	}
	const window = 2 * time.Minute
	now := time.Since(w.begun)
	proc, _, _ := strings.Cut(c.name, "/")
	rng := w.random(fmt.Sprintf("%s stands still in %d", proc, now/window))
	from := now/window*window + draw(rng, time.Minute)
	until := from + draw(rng, time.Minute)
	if now >= from && now < until {
		_ = nap(w.ctx, until-now)
	}
}

// saysOver reports whether an error promises its client that the request will not be
// executed any more.
func saysOver(raw []byte) bool {
	text, _ := wire.String(wire.Lookup(raw, "error", "message"))
	return strings.Contains(text, "not be from now on") || strings.Contains(text, "not executed")
}

// invites reports whether an error makes its client send the request again.
func invites(err error) bool {
	var known *storage.Error
	return errors.As(err, &known) && (known.Code == storage.Unavailable || known.Code == storage.Busy || toRepeat(known.Message))
}

func toRepeat(text string) bool {
	return strings.Contains(text, "send it again") || strings.Contains(text, "try again")
}

func (w *world) checkInvitations(log map[simStreamKey]*simStream) {
	for _, c := range w.clients {
		for _, r := range c.requests {
			if e, ok := w.ledger.executed(r.label); ok && invites(r.broken) {
				w.breaks("%s was executed by %s, and its client is told: %v", r.label, e.by, r.broken)
			}
		}
	}
	for _, s := range w.sockets {
		for _, r := range s.calls {
			if e, ok := w.ledger.executed(r.label); ok && invites(r.refused) {
				w.breaks("%s was executed by %s, and its client is told: %v", r.label, e.by, r.refused)
			}
		}
	}
	for key, s := range log {
		last := s.events[len(s.events)-1]
		text, _ := wire.String(wire.Lookup(last.Raw, "error", "message"))
		if key.stream == storage.Standalone || !last.Final || byOf(last.Raw) != "" || text == "" {
			continue
		}
		label := w.name(s.id)
		e, ok := w.ledger.executed(label)
		if ok && toRepeat(text) && len(s.events) == 1 && !isKeyed(label) { // with a key, a repeat of an execution that never was is executed
			w.breaks("%s was executed by %s, and ends with: %s", label, e.by, text)
		}
	}
}

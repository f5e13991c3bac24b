package relay_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// listen is the client's GET on the standalone stream. It repeats the GET with the id of the
// last event it saw. It stops when the world is over and the client has had the time to
// get the rest.
func (c *simClient) listen() {
	w := c.w
	last := ""
	if rng := w.random("listening of " + c.name); rng.IntN(3) == 0 {
		_ = nap(w.ctx, draw(rng, 5*time.Minute))
	}
	var over time.Time
	for n := 1; w.ctx.Err() == nil; n++ {
		if w.closed.Load() {
			if over.IsZero() {
				over = time.Now()
			}
			if time.Since(over) > 3*time.Minute {
				return
			}
		}
		gone := false
		retry := 10 * time.Second
		from := last
		name := fmt.Sprintf("%s/listen%d", c.name, n)
		c.respond(name, func(ctx context.Context, a *actor, p *response) {
			call, err := c.w.host().Listen(ctx, c.caller, c.id, from)
			if err != nil || a.step(ctx) != nil {
				a.tell("%v", err)
				gone = errors.Is(err, storage.NotFound)
				w.breaksIf(gone && !w.ledger.ended.has(c.name), "the session of %s is lost to its listener: %v", c.name, err)
				return
			}
			until := time.Now().Add(call.Hold())
			events, err := call.Next(ctx, time.Now())
			if err == nil {
				p.write(func() { last = opening(call, events, from) })
			}
			for err == nil && a.step(ctx) == nil {
				p.write(func() { last = c.hear(call, events, last); retry = call.Retry() })
				if _, closed := call.Close(); closed || call.Done() || !time.Now().Before(until) {
					return
				}
				events, err = call.Next(ctx, until)
			}
		})
		if gone {
			return
		}
		_ = nap(w.ctx, retry+draw(w.random(name), 100*time.Millisecond))
	}
}

// opening returns the first cursor of a response: the one before the first event. While
// another GET has the stream, opening returns the cursor with which the client came.
func opening(call *sessions.Call, events []storage.Event, from string) string {
	id := call.Cursor()
	if len(events) > 0 {
		id.Index = events[0].Index - 1
	}
	if came, err := storage.ParseEventID(from); err == nil && id.Index == 0 {
		id.Index = came.Index
	}
	return id.String()
}

// hear is the client's end of the stream. It checks that each event comes once, and in
// order.
func (c *simClient) hear(call *sessions.Call, events []storage.Event, last string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range events {
		c.w.breaksIf(e.Index != c.heard+1, "the listener of %s hears event %d after event %d", c.name, e.Index, c.heard)
		c.w.tell(c.name, "hears event %d: %.100s", e.Index, e.Raw)
		c.heard, last = e.Index, call.ID(e).String()
	}
	return last
}

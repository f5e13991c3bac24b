//go:build e2e

package dormouse_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// alive checks that sessions go on when all is over.
func alive(t *testing.T, sessions []*client) {
	t.Helper()
	for i, c := range sessions {
		commontest.EqualIn(t, fmt.Sprintf("session %d at %s says", i, c.url), "alive", c.text("echo", `{"text":"alive"}`))
	}
}

// keepCalling has each client make one call after the other during the kills, until done. The tag
// of a call begins with the client's mark. made waits for the end of all, and returns how many
// there were.
func keepCalling(clients []*client, done <-chan struct{}) (made func() int64) {
	var callers sync.WaitGroup
	var calls atomic.Int64
	for i, c := range clients {
		callers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				case <-time.After(20 * time.Millisecond): // while dormouse is down, calls fail at once
					c.survive(strings.TrimSpace(fmt.Sprintf("%s session %d call %d", c.mark, i, n)))
					calls.Add(1)
				}
			}
		})
	}
	return func() int64 {
		callers.Wait()
		return calls.Load()
	}
}

// survivable is how long a call may take whose programs are killed. The sweep that ends the
// calls of a lost box may be killed too, and the next one comes a minute later.
const survivable = patience + 3*time.Minute

// survive makes a call during the kills, and polls for its end as long as it has a cursor.
// Without a cursor the call was not accepted, so it need not end.
func (c *client) survive(tag string) {
	ctx, cancel := context.WithTimeout(c.t.Context(), survivable)
	defer cancel()
	id, last := c.id(), ""
	var all []wire.Message
	s, err := c.send(ctx, http.MethodPost, "", c.request(id, "work", fmt.Sprintf(`{"before":2,"after":2,"pause":50,"tag":%q}`, tag)))
	for ctx.Err() == nil {
		if err == nil && s.status == http.StatusOK {
			more, _ := s.messages() // read up to the end, or to the cut that this test makes
			all, last = append(all, more...), s.last
			s.close()
		} else if err == nil {
			s.close()
		}
		if n := len(all); n > 0 && all[n-1].Kind == wire.Response {
			c.wantEnd(tag, id, all)
			return
		}
		if last == "" {
			return
		}
		if err != nil { // the test has just killed the program that listened there
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		s, err = c.send(ctx, http.MethodGet, last, "")
	}
	c.t.Errorf("%s was accepted and has no end after %s: %v, %v", tag, survivable, ended(all), errors.Join(err, ctx.Err()))
}

// wantEnd checks that each message came once and in order, and that the end explains what
// happened.
func (c *client) wantEnd(tag, id string, all []wire.Message) {
	got := ended(all)
	for n, what := range got[:len(got)-1] {
		if want := fmt.Sprintf("progress %d", n+1); what != want {
			c.t.Errorf("%s: message %d is %s, want %s: %v", tag, n, what, want, got)
		}
	}
	end := all[len(all)-1]
	if string(end.ID) != id {
		c.t.Errorf("%s: ended in %s, want a response to %s", tag, end.Raw, id)
	}
	if end.Error == nil {
		if len(got) != 5 || textOf(end) != "worked" {
			c.t.Errorf("%s: result %s behind %v", tag, end.Raw, got)
		}
		return
	}
	if f, err := failureOf(end); err != nil || f.Data.Phase == "" || f.Message == "" {
		c.t.Errorf("%s: ended in %s, want a phase and what happened", tag, end.Raw)
	}
}

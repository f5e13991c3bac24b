package transport_test

import (
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// sentAway checks the end of a response that the server has closed: the cursor again, with
// the retry that the server set.
func sentAway(t *testing.T, a *answer, retry time.Duration) {
	t.Helper()
	events := a.events(t)
	last := events[len(events)-1]
	if !sendsAway(last) || last.Retry != retry || last.ID == events[0].ID {
		t.Errorf("the response ends with %+v, want a cursor of its own with retry %s", last, retry)
	}
}

// the server closes the stream of a call with a retry of its own. The client comes
// back for the rest. It gets every event exactly once.
func TestServerClosesTheStreamOfACall(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		for _, raw := range []string{said("one"), ""} { // with its last event, and behind it
			w.backend.tool("steps", func(r run) {
				if raw == "" {
					r.say("one")
				}
				r.pause(raw, 5*time.Second)
				time.Sleep(20 * time.Second)
				r.say("two")
				r.end(`{}`)
			})
			v := w.visit("quiet")
			first := v.call("steps")
			sentAway(t, first, 5*time.Second)
			commontest.Same(t, []string{said("one")}, first.datas(t))
			if first.took > time.Second {
				t.Errorf("held for %s", first.took)
			}
			time.Sleep(first.retry(t))
			second := v.get(first.lastID(t))
			commontest.SameIn(t, "afterwards", []string{said("two"), resultOf(`{}`)}, second.datas(t))
		}
	})
}

// the server closes the standalone stream. The response of the primary ends at
// once, and those of the standbys soon after. All of them continue when they come back.
func TestServerClosesTheStandaloneStream(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		v := w.visit("pushy")
		crowd := v.crowd(4)
		common := w.outside(storage.ID(v.session))
		common.say("one")
		settle()
		common.pause("", 5*time.Second)
		if !crowd[0].isOver() {
			t.Fatal("the primary is held")
		}
		primary := crowd[0].end()
		sentAway(t, primary, 5*time.Second)
		commontest.SameIn(t, "the primary", []string{said("one")}, primary.datas(t))
		for i, c := range crowd[1:] {
			if a := c.end(); len(a.datas(t)) != 0 || a.took > 24*time.Second {
				t.Errorf("shadow %d was held for %s and heard %v", i+1, a.took, a.datas(t))
			}
		}
		again := v.listen(primary.lastID(t))
		settle()
		common.say("two")
		commontest.SameIn(t, "the primary again", []string{said("two")}, again.seen().datas(t))
	})
}

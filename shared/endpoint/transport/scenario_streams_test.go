package transport_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// crowd opens listeners a second apart. The first becomes the primary.
func (c *client) crowd(n int) []*conn {
	var crowd []*conn
	for range n {
		crowd = append(crowd, c.listen(""))
		time.Sleep(time.Second)
	}
	return crowd
}

// C-36, C-41, C-74: until the last of five listeners is closed, each event is sent once, to one of
// them. When the time of the first is over, its client comes back, and no other listener
// gets the old events again.
func TestOfStaggeredListenersOneHearsEachEvent(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		v := w.visit("pushy")
		crowd := v.crowd(5)
		v.push("once")
		first := crowd[0].end()
		time.Sleep(first.retry(t))
		back := v.listen(first.lastID(t))
		all := first.datas(t)
		commontest.EqualIn(t, "events of the first", 1, len(all))
		for i, c := range crowd[1:] {
			a := c.end()
			commontest.Contains(t, fmt.Sprint("shadow ", i+1), ": keep-alive\n", a.body)
			all = append(all, a.datas(t)...)
		}
		v.push("and again")
		all = append(all, back.end().datas(t)...)
		commontest.SameIn(t, "heard by all together", []string{said("once"), said("and again")}, all)
	})
}

// the primary dies. When its lease is over, the next listener gets
// the events that the dead one had not reported, and all later events.
func TestNextListenerReplacesADeadPrimary(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		v := w.visit("pushy")
		primary := v.listen("")
		v.push("one")
		if diff := cmp.Diff([]string{said("one")}, primary.leave().datas(t)); diff != "" {
			t.Fatal(diff)
		}
		v.push("two") // nobody is there
		var heard []string
		last := ""
		for range 5 {
			a := v.get(last)
			if heard, last = append(heard, a.datas(t)...), a.lastID(t); len(heard) > 0 {
				break
			}
			time.Sleep(2 * time.Second)
		}
		v.push("three")
		heard = append(heard, v.get(last).datas(t)...)
		commontest.SameIn(t, "the next one", []string{said("one"), said("two"), said("three")}, heard)
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
		primary := crowd[0].end()
		if events := primary.events(t); !sendsAway(events[len(events)-1]) || primary.retry(t) != 5*time.Second {
			t.Errorf("the response ends with %s", primary.body)
		}
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

// C-12, C-13, R-30: a stream may not exist, not yet or no longer, or may belong to another session. Its
// response is an event stream that ends at once, so that no client asks in a loop or waits.
func TestStreamThatIsNotThereIsAnEmptyOne(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		mine, other := w.visit("quiet"), w.visit("quiet")
		w.backend.tool("steps", func(r run) { r.say("secret"); r.end(`{}`) })
		id := func(e storage.EventID) string { return e.String() }
		events := mine.call("steps").events(t)
		end, err := storage.ParseEventID(events[2].ID)
		commontest.OK(t, err)
		w.backend.attend = storage.NotFound // nobody owes these an end
		for name, a := range map[string]*answer{
			"another session's": other.get(events[0].ID),
			"nobody's":          mine.get(id(storage.EventID{Stream: storage.NewStreamID(), Index: 4})),
			"its own, ended":    mine.get(id(end)),
		} {
			if !isPriming(a.events(t)[0]) || len(a.datas(t)) != 0 || a.took != 0 {
				t.Errorf("%s: held for %s with %s", name, a.took, a.body)
			}
		}
		expired := storage.EventID{Stream: storage.NewStreamID()}
		batch := storage.Batch{
			Session: storage.ID(mine.session), Stream: expired.Stream, First: 1, Gen: 1, Seq: 1, Final: true,
			Events: [][]byte{[]byte(resultOf(`{}`))}, Expires: time.Now().Add(24 * time.Hour),
		}
		commontest.OK(t, w.store.Append(t.Context(), batch))
		commontest.EqualIn(t, "in time", 1, len(mine.get(id(expired)).datas(t)))
		time.Sleep(25 * time.Hour)
		if a := mine.get(id(expired)); a.status != http.StatusOK || len(a.datas(t)) != 0 || a.took != 0 {
			t.Errorf("expired: held for %s with %s", a.took, a.body)
		}
	})
}

package transport_test

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// C-6, R-5: the connection breaks after the first progress, before there is a result. The
// result comes on the next connection. It did not exist before that.
func TestCallThatWasDroppedAfterItsFirstProgressEndsOnTheNextConnection(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		runs, proceed := 0, make(chan struct{})
		w.backend.tool("steps", func(r run) {
			runs++
			r.say("half")
			<-proceed
			r.end(`{"done":true}`)
		})
		v := w.visit("quiet")
		first := v.calling("steps").leave()
		if diff := cmp.Diff([]string{said("half")}, first.datas(t)); diff != "" {
			t.Fatalf("before the cut (-want +got):\n%s", diff)
		}
		stream, err := w.store.Newest(t.Context(), storage.ID(v.session))
		commontest.OK(t, err)
		if tail, err := w.store.Tail(t.Context(), storage.ID(v.session), stream); err != nil || tail.Last != 1 || tail.Final {
			t.Fatalf("when the connection was cut the log was at %+v; a result in it would prove nothing", tail)
		}
		close(proceed)
		synctest.Wait()
		second := v.get(first.lastID(t))
		commontest.SameIn(t, "after the cut", []string{resultOf(`{"done":true}`)}, second.datas(t))
		if third := v.get(second.lastID(t)); len(third.datas(t)) != 0 || third.took != 0 {
			t.Errorf("after the end: held for %s with %s", third.took, third.body)
		}
		if runs != 1 {
			t.Errorf("the tool was run %d times", runs)
		}
	})
}

// C-6, R-5, R-16 (and C12): the last byte was written. The client never got it, or got it
// and asks again. It can fetch the result from every instance that serves the session, for
// as long as events are kept.
func TestResultThatWasWrittenIntoTheVoidIsFetchedAgain(t *testing.T) {
	want := []string{said("1"), said("2"), resultOf(`{}`)}
	for read := range len(want) + 1 {
		t.Run(fmt.Sprintf("after %d events", read), func(t *testing.T) {
			scenario(t, func(t *testing.T, w *world) {
				w.backend.tool("steps", func(r run) { r.say("1"); r.say("2"); r.end(`{}`) })
				v := w.visit("quiet")
				events := v.call("steps").events(t)
				for _, later := range []time.Duration{0, time.Second, 20 * time.Hour} {
					time.Sleep(later)
					again := v.get(events[read].ID)
					if diff := cmp.Diff(want[read:], again.datas(t), equateEmpty()); diff != "" || again.took != 0 {
						t.Errorf("after %s, held for %s (-want +got):\n%s", later, again.took, diff)
					}
				}
			})
		})
	}
}

func equateEmpty() cmp.Option {
	return cmp.FilterValues(func(a, b []string) bool { return len(a)+len(b) == 0 }, cmp.Ignore())
}

// C-34, C-43: a client comes back while its old connection is still open. Both responses
// read the log, so each gets every event after its cursor once. The old one ends when the
// request does.
func TestStaleConnectionOfACallEndsWithTheCall(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		proceed := make(chan struct{})
		w.backend.tool("steps", func(r run) {
			r.say("one")
			<-proceed
			r.say("two")
			r.end(`{}`)
		})
		v := w.visit("quiet")
		stale := v.calling("steps")
		resumed := v.listen(stale.seen().lastID(t))
		if len(resumed.seen().datas(t)) != 0 {
			t.Fatalf("the new connection began with %s", resumed.seen().body)
		}
		close(proceed)
		commontest.SameIn(t, "the new connection", []string{said("two"), resultOf(`{}`)}, resumed.end().datas(t))
		commontest.SameIn(t, "the old connection", []string{said("one"), said("two"), resultOf(`{}`)}, stale.end().datas(t))
		if old, next := stale.seen().took, resumed.seen().took; old > time.Second || next > time.Second {
			t.Errorf("the call took no time, the connections %s and %s", old, next)
		}
	})
}

// C-34, C-43, on the standalone stream: a client loses its connection without the endpoint
// noticing. It comes back to its own lease, and gets the later events.
func TestListenerThatComesBackHearsThoughItsOldConnectionStands(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		v := w.visit("pushy")
		stale := v.listen("")
		v.push("one")
		time.Sleep(time.Second)
		last := stale.seen().lastID(t)
		resumed := v.listen(last)
		synctest.Wait()
		v.push("two")
		commontest.SameIn(t, "the new connection", []string{said("two")}, resumed.end().datas(t))
		if !stale.isOver() || stale.end().took > 25*time.Second {
			t.Error("the old connection stands on")
		}
	})
}

// C-4, C-8, C-9, C-10, R-28: every event has an id that names its stream and grows by one.
// No id comes twice in a session, however often streams are opened, cut and resumed.
func TestEveryEventOfASessionHasAnIDOfItsOwn(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.backend.tool("steps", func(r run) {
			for i := range 3 {
				r.say(fmt.Sprint(i))
			}
			r.end(`{}`)
		})
		v := w.visit("pushy")
		seen := map[string]string{}
		next := map[storage.StreamID]storage.Index{}
		note := func(a *answer) {
			for _, e := range a.events(t) {
				if e.ID == "" && len(e.Data) > 0 {
					t.Errorf("an event without an id: %s", e.Data)
				}
				id, err := storage.ParseEventID(e.ID)
				if e.ID == "" || len(e.Data) == 0 {
					continue
				}
				if was, twice := seen[e.ID]; err != nil || twice {
					t.Errorf("id %s of %s is that of %s too: %v", e.ID, e.Data, was, err)
				}
				seen[e.ID] = string(e.Data)
				if next[id.Stream]++; id.Index != next[id.Stream] {
					t.Errorf("%s comes at %d of its stream, expected at %d", e.ID, id.Index, next[id.Stream])
				}
			}
		}
		last := ""
		for range 4 {
			note(v.call("steps"))
			v.push("news")
			a := v.get(last)
			note(a)
			last = a.lastID(t)
			time.Sleep(time.Hour)
		}
		if len(seen) != 20 || len(next) != 5 {
			t.Errorf("%d events on %d streams, want 20 on 5: %v", len(seen), len(next), next)
		}
	})
}

// C-12, C-13, R-30: a stream may not exist, not yet or no longer, or may belong
// to another session. Its response is an event stream that ends at once, so that no client
// asks in a loop or waits.
func TestStreamThatIsNotThereIsAnEmptyOne(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
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
			"of the future":     mine.get(id(storage.EventID{Stream: end.Stream, Index: end.Index + 40})),
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
		if a := mine.get(id(expired)); len(a.datas(t)) != 1 {
			t.Errorf("in time: got %s", a.body)
		}
		time.Sleep(25 * time.Hour)
		if a := mine.get(id(expired)); a.status != http.StatusOK || len(a.datas(t)) != 0 || a.took != 0 {
			t.Errorf("expired: held for %s with %s", a.took, a.body)
		}
	})
}

// C-5: polls of a call and a listener do not disturb one another.
func TestPollsOfACallAndAListenerGoSideBySide(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.backend.tool("long", func(r run) {
			for i := range 4 {
				time.Sleep(20 * time.Second)
				r.say(fmt.Sprint(i))
			}
			r.end(`{}`)
		})
		v := w.visit("pushy")
		listener, caller := &follower{v: v}, &follower{v: v, conn: v.calling("long")}
		var news []string
		follow(t, 190, func(second int) {
			if second%25 == 24 {
				v.push(fmt.Sprint("news ", second))
				news = append(news, said(fmt.Sprint("news ", second)))
			}
			if slices.Contains(caller.heard, resultOf(`{}`)) {
				caller.due = time.Now().Add(time.Hour) // it has what it wanted
			}
		}, listener, caller)
		commontest.SameIn(t, "the call", []string{said("0"), said("1"), said("2"), said("3"), resultOf(`{}`)}, caller.heard)
		if caller.opened == 0 {
			t.Error("the call was never polled")
		}
		if diff := cmp.Diff(news, listener.heard); diff != "" {
			t.Errorf("the listener (-want +got):\n%s", diff)
		}
	})
}

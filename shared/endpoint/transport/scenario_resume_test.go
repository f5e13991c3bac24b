package transport_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// C-34, C-43: a client comes back while its old connection is still open. Both responses read the log,
// so each gets every event after its cursor once. The old one ends when the request does.
func TestStaleConnectionOfACallEndsWithTheCall(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
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

// C-32: two POSTs have the same id: of two sessions, or of one session one after the
// other. Each gets its own response, also when it is resumed later.
func TestCallsWithTheSameIDKeepTheirOwn(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.backend.tool("mirror", func(r run) {
			word, _ := wire.String(wire.Lookup([]byte(r.raw), "params", "arguments", "word"))
			r.say(word)
			time.Sleep(2 * time.Second) // calls overlap
			r.end(`{"word":"` + word + `"}`)
		})
		mirrored := func(word string) string {
			return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mirror","arguments":{"word":"` + word + `"}}}`
		}
		a, b := w.visit("quiet"), w.visit("quiet")
		one, two := a.w.begin(a.request("POST", mirrored("a"))), b.w.begin(b.request("POST", mirrored("b")))
		first, second := one.end(), two.end()
		third := a.post(mirrored("c"))
		for word, x := range map[string]struct {
			v *client
			a *answer
		}{"a": {a, first}, "b": {b, second}, "c": {a, third}} {
			want := []string{said(word), resultOf(`{"word":"` + word + `"}`)}
			commontest.SameIn(t, word, want, x.a.datas(t))
			commontest.SameIn(t, word+", taken up", want, x.v.get(x.a.events(t)[0].ID).datas(t))
		}
	})
}

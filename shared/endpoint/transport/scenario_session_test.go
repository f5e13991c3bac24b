package transport_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// C-1, C-69, C-71, R-1: what the client said in initialize is kept. The process that
// executes a message gets it with the message, however old the session is.
func TestWhatTheClientSaidOfItselfComesWithEveryMessage(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const params = `{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{},"x":9007199254740993},"clientInfo":{"name":"ann","version":"7"}}`
		a := w.do(request("POST", "/quiet/mcp", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":`+params+`}`))
		v := w.at("/quiet/mcp", a.header.Get("Mcp-Session-Id"))
		commontest.EqualIn(t, "kept", params, string(v.record().Init))
		v.post(initialized)
		for range 2 {
			time.Sleep(6 * 24 * time.Hour)
			if a := v.call("x"); a.status != http.StatusOK {
				t.Fatalf("got %d %s", a.status, a.body)
			}
			d := w.backend.delivered[len(w.backend.delivered)-1]
			if string(d.Client.Init) != params || d.Client.Version != "2025-11-25" || d.Client.Principal != "ada" {
				t.Errorf("delivered for %s with %s, version %s", d.Client.Principal, d.Client.Init, d.Client.Version)
			}
		}
	})
}

// C-75: the backend learns once that a session has ended. The end of the
// session also ends what is open, and every instance knows of it.
func TestDeletedSessionIsGoneForEverybody(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		v := w.visit("pushy")
		w.backend.tool("hang", func(run) {})
		poll := v.call("hang").lastID(t)
		if a := v.del(); a.status != http.StatusNoContent || a.body != "" {
			t.Fatalf("got %d %s", a.status, a.body)
		}
		commontest.SameIn(t, "ended", []storage.ID{storage.ID(v.session)}, w.backend.ended)
		if r := v.record(); r.State != storage.Ended || r.Quit != storage.QuitClient {
			t.Errorf("the record says %s, %s", r.State, r.Quit)
		}
		for name, a := range map[string]*answer{
			"call": v.call("x"), "listen": v.get(""), "poll": v.get(poll), "ping": v.post(`{"jsonrpc":"2.0","id":2,"method":"ping"}`), "delete": v.del(),
		} {
			a.is(t, name, http.StatusNotFound, 0)
		}
		commontest.EqualIn(t, "ends that the backend was told of", 1, len(w.backend.ended))
	})
}

// a session whose client never sends notifications/initialized ends by itself.
func TestSessionWithoutInitializedIsGoneAfterAMinute(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		late, inTime := w.greet("/known/mcp"), w.greet("/known/mcp")
		time.Sleep(59 * time.Second)
		inTime.post(initialized).is(t, "in time", http.StatusAccepted, 0)
		time.Sleep(2 * time.Second)
		for _, a := range []*answer{late.post(initialized), late.call("x"), late.get("")} {
			a.is(t, "late", http.StatusNotFound, wire.CodeSessionNotFound)
		}
		inTime.call("x").is(t, "in time, later", http.StatusOK, 0)
	})
}

// A client that calls has got the answer to its initialize, whether it says so or not. R-33: a
// setting says how long it may take to do either.
func TestSessionWithoutInitializedThatIsUsedLives(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.limits.InitTimeout = 1000 * time.Hour
		v := w.greet("/known/mcp")
		time.Sleep(999 * time.Hour)
		for range 3 {
			v.call("x").is(t, "a call", http.StatusOK, 0)
			time.Sleep(3 * 24 * time.Hour)
		}
	})
}

// a session that expires unused is not logged as an error. A client that comes back
// to it is refused, and that is not logged as an error either.
func TestExpiredSessionIsNoErrorInTheLog(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		v := w.visit("pushy")
		w.logged.Reset()
		time.Sleep(8 * 24 * time.Hour)
		if w.logged.Len() > 0 {
			t.Errorf("logged %s", w.logged)
		}
		v.call("x").is(t, "a call", http.StatusNotFound, 0)
		v.get("").is(t, "a listener", http.StatusNotFound, 0)
		if log := w.logged.String(); strings.Contains(log, `"level":"ERROR"`) || strings.Count(log, `"code":"not_found"`) != 2 {
			t.Errorf("logged %s", log)
		}
	})
}

// Many requests change the record of one session at the same time, on a slow store. All
// are served, and none undoes the change of another.
func TestManyChangesOfASessionAtOnceAreAllKept(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		v := w.visit("quiet")
		var late atomic.Int64 // each call takes another time
		w.fail(func(do func() error) error { time.Sleep(time.Duration(late.Add(7)%20) * time.Millisecond); return do() }, "Load", "Save")
		conns, want := map[string]*conn{}, []string{}
		for i := range 50 {
			uri := fmt.Sprintf("file:///%02d", i)
			want = append(want, uri)
			conns[uri] = w.begin(v.request("POST", `{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"`+uri+`"}}`))
		}
		for uri, c := range conns {
			c.end().is(t, uri, http.StatusOK, 0)
		}
		commontest.SameIn(t, "kept", want, slices.Sorted(slices.Values(v.record().Subscribed)))
	})
}

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
)

// C-1, C-69, C-71, R-1: what the client said in initialize is kept. The process that
// executes a message gets it with the message, however old the session is.
func TestWhatTheClientSaidOfItselfComesWithEveryMessage(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
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

// C-68: a request does not write the state of its session.
func TestRequestsDoNotWriteTheSession(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		v := w.visit("quiet")
		v.call("x") // the first request writes that the session has had one
		w.calls = map[string]int{}
		for range 10 {
			v.call("x")
			v.post(`{"jsonrpc":"2.0","method":"notifications/x"}`)
		}
		delete(w.calls, "Wait")
		commontest.SameIn(t, "calls of the store", map[string]int{"Load": 20}, w.calls)
	})
}

// C-75: the backend learns once that a session has ended. The end of the
// session also ends what is open, and every instance knows of it.
func TestDeletedSessionIsGoneForEverybody(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
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
			if a.status != http.StatusNotFound {
				t.Errorf("%s: got %d %s", name, a.status, a.body)
			}
		}
		if len(w.backend.ended) != 1 {
			t.Errorf("told %d times", len(w.backend.ended))
		}
	})
}

// C-73: messages that a server sends after the end of its session are dropped.
func TestWhatIsSaidAfterTheEndOfASessionIsSwallowed(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		v, other := w.visit("pushy"), w.visit("pushy")
		w.backend.tool("late", func(r run) { time.Sleep(time.Minute); r.say("too late"); r.end(`{}`) })
		poll := v.call("late").lastID(t)
		v.del()
		time.Sleep(time.Minute)
		v.push("nobody is there")
		for _, last := range []string{poll, ""} {
			if a := v.get(last); a.status != http.StatusNotFound || strings.Contains(a.body, "late") {
				t.Errorf("got %d %s", a.status, a.body)
			}
		}
		if a := other.get(""); len(a.datas(t)) != 0 {
			t.Errorf("another session heard %s", a.body)
		}
	})
}

// a session whose client never sends notifications/initialized ends by itself.
func TestSessionWithoutInitializedIsGoneAfterAMinute(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		late, inTime := w.greet("/known/mcp"), w.greet("/known/mcp")
		time.Sleep(59 * time.Second)
		if a := inTime.post(initialized); a.status != http.StatusAccepted {
			t.Errorf("in time: got %d %s", a.status, a.body)
		}
		time.Sleep(2 * time.Second)
		for _, a := range []*answer{late.post(initialized), late.call("x"), late.get("")} {
			if code, _ := a.rpcError(t); a.status != http.StatusNotFound || code != -32001 {
				t.Errorf("late: got %d %s", a.status, a.body)
			}
		}
		if a := inTime.call("x"); a.status != http.StatusOK {
			t.Errorf("in time, later: got %d %s", a.status, a.body)
		}
	})
}

// A client that calls has got the answer to its initialize, whether it says so or not.
func TestSessionWithoutInitializedThatIsUsedLives(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		v := w.greet("/known/mcp")
		for range 3 {
			if a := v.call("x"); a.status != http.StatusOK {
				t.Fatalf("got %d %s", a.status, a.body)
			}
			time.Sleep(3 * 24 * time.Hour)
		}
	})
}

// a setting says how long the client may take to send notifications/initialized.
func TestSessionWithoutInitializedLivesAsLongAsIsSet(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.limits.InitTimeout = 1000 * time.Hour
		v := w.greet("/known/mcp")
		time.Sleep(999 * time.Hour)
		if a := v.call("x"); a.status != http.StatusOK {
			t.Errorf("got %d %s", a.status, a.body)
		}
	})
}

// a session that expires unused is not logged as an error. A client that comes back
// to it is refused, and that is not logged as an error either.
func TestExpiredSessionIsNoErrorInTheLog(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		v := w.visit("pushy")
		w.logged.Reset()
		time.Sleep(8 * 24 * time.Hour)
		if w.logged.Len() > 0 {
			t.Errorf("logged %s", w.logged)
		}
		if a := v.call("x"); a.status != http.StatusNotFound {
			t.Errorf("got %d %s", a.status, a.body)
		}
		if a := v.get(""); a.status != http.StatusNotFound {
			t.Errorf("got %d %s", a.status, a.body)
		}
		if log := w.logged.String(); strings.Contains(log, `"level":"ERROR"`) || strings.Count(log, `"code":"not_found"`) != 2 {
			t.Errorf("logged %s", log)
		}
	})
}

// Many requests change the record of one session at the same time, on a slow store. All
// are served, and none undoes the change of another.
func TestManyChangesOfASessionAtOnceAreAllKept(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
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
			if a := c.end(); a.status != http.StatusOK {
				t.Errorf("%s: got %d %s", uri, a.status, a.body)
			}
		}
		commontest.SameIn(t, "kept", want, slices.Sorted(slices.Values(v.record().Subscribed)))
	})
}

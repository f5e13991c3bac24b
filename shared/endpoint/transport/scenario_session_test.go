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

// A server may take minutes to start. The session is there when it has.
func TestSessionOutlivesTheStartOfItsServer(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.backend.tool("initialize", func(r run) {
			time.Sleep(4 * time.Minute)
			r.end(`{"protocolVersion":"2025-11-25","capabilities":{}}`)
		})
		a := w.do(request("POST", "/quiet/mcp", initialize))
		if events := a.events(t); len(events) != 1 || events[0].Retry != 0 {
			t.Errorf("a client that has no version yet gets %s", a.body)
		}
		w.at("/quiet/mcp", a.header.Get(sessionIs)).post(initialized).is(t, "afterwards", http.StatusAccepted, 0)
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

// the message of initialize alone decides the version
// of a session. The endpoint ignores a version header beside it, older, newer or of
// another era: a client that begins again may send the header of its last session.
func TestVersionOfASessionIsWhatItsInitializeSays(t *testing.T) {
	for _, header := range []string{"2025-03-26", "2025-11-25", "2026-07-28", "1999-01-01", ""} {
		bubble(t, func(t *testing.T, w *world) {
			body := strings.Replace(initialize, "2025-11-25", "2025-06-18", 1)
			a := w.do(request("POST", "/quiet/mcp", body, versionIs, header))
			a.is(t, header, http.StatusOK, 0)
			commontest.EqualIn(t, "the server got", body, string(w.backend.delivered[0].Raw))
			v := w.at("/quiet/mcp", a.header.Get(sessionIs))
			v.version = "2025-06-18"
			v.call("x").is(t, "a call", http.StatusOK, 0)
		})
	}
}

// a first message that is refused opens no session and
// reaches no server. If it names neither a session nor the modern era, the error says that
// it needs a session, whatever version it names.
func TestFirstPOSTThatIsRefusedOpensNoSession(t *testing.T) {
	older := []string{versionIs, "2025-11-25"}
	bubble(t, func(t *testing.T, w *world) {
		for _, tt := range []struct {
			name, body string
			headers    []string
			code       wire.Code
			says       string
		}{
			{"a request", list, nil, wire.CodeServer, "send initialize"},
			{"a request that names an older version", strings.Replace(list, `list"`, `list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2025-11-25"}}`, 1), older, wire.CodeServer, "send initialize"},
			{"a notification", initialized, nil, wire.CodeServer, "send initialize"},
			{"initialize in a batch", "[" + initialize + "]", nil, wire.CodeInvalidRequest, "batch"},
			{"initialize without a version", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`, nil, wire.CodeInvalidRequest, "params.protocolVersion"},
		} {
			a := w.do(request("POST", "/quiet/mcp", tt.body, tt.headers...))
			a.is(t, tt.name, http.StatusBadRequest, tt.code)
			if !strings.Contains(a.body, tt.says) || a.header.Get(sessionIs) != "" {
				t.Errorf("%s: got %s", tt.name, a.body)
			}
		}
		w.nothingCame(t)
	})
}

// nothingCame asserts that there is no session, and that the server got nothing.
func (w *world) nothingCame(t *testing.T) {
	t.Helper()
	opened, err := w.store.List(t.Context(), "tenant", "", 10)
	if err != nil || len(opened) > 0 || w.calls["Create"] > 0 {
		t.Errorf("there are sessions: %v %v; calls of the store: %v", opened, err, w.calls)
	}
	commontest.EqualIn(t, "messages to the server", 0, len(w.backend.delivered))
}

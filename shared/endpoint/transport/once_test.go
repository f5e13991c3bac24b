package transport_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// door is a way in which a client calls the tool pay of the server s0.
type door func(w *world, id int, key, arguments string) *answer

func keyedBody(id int, tool, arguments, member string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s%s}}`, id, tool, arguments, member)
}

func modernKeyed(path, tool string, header bool) door {
	return func(w *world, id int, key, arguments string) *answer {
		a := ask{path: path, id: fmt.Sprint(id), method: "tools/call", params: `"name":"` + tool + `","arguments":` + arguments}
		if header {
			a.headers = []string{"Idempotency-Key", key}
		} else {
			a.meta = `,"io.modelcontextprotocol/idempotencyKey":"` + key + `"`
		}
		return w.do(a.request())
	}
}

// doors are the ways to the tool. Each call has a session of its own where there are sessions.
var doors = map[string]door{
	"2025, header": func(w *world, id int, key, arguments string) *answer {
		return w.visit("s0").post(keyedBody(id, "pay", arguments, ""), "Idempotency-Key", `"`+key+`"`)
	},
	"2025, params": func(w *world, id int, key, arguments string) *answer {
		return w.visit("s0").post(keyedBody(id, "pay", arguments, `,"idempotencyKey":"`+key+`"`))
	},
	"2025, group": func(w *world, id int, key, arguments string) *answer {
		return w.visitAt("/mcp").post(keyedBody(id, "s0__pay", arguments, `,"_meta":{"io.modelcontextprotocol/idempotencyKey":"`+key+`"}`))
	},
	"2026, meta":   modernKeyed("/s0/mcp", "pay", false),
	"2026, header": modernKeyed("/s0/mcp", "pay", true),
	"2026, group":  modernKeyed("/mcp", "s0__pay", true),
	"HTTP+SSE": func(w *world, id int, key, arguments string) *answer {
		c := w.openSSE("s0", "").open()
		c.accepted(keyedBody(id, "pay", arguments, `,"idempotencyKey":"`+key+`"`))
		time.Sleep(25 * time.Second) // until the call has ended
		return pushed(c.messages())
	},
	"WebSocket": func(w *world, id int, key, arguments string) *answer {
		l := w.link(url.Values{"server": {"s0"}}).open()
		got := l.say(keyedBody(id, "pay", arguments, `,"idempotencyKey":"`+key+`"`))
		time.Sleep(25 * time.Second)
		return pushed(messages(append(got, l.heard()...)))
	},
}

// pushed returns the last of the messages that a client has got apart from its request.
func pushed(all []string) *answer {
	a := &answer{status: http.StatusOK, header: http.Header{}}
	if len(all) > 0 {
		a.body = all[len(all)-1]
	}
	return a
}

func (a *answer) message(t *testing.T) []byte {
	t.Helper()
	if a.header.Get("Content-Type") == wire.MediaSSE {
		all := a.datas(t)
		return []byte(all[len(all)-1])
	}
	return []byte(a.body)
}

// payment has the tool pay say which call of it this is. It takes a time for it.
func (w *world) payment(took time.Duration) (paid *atomic.Int32) {
	paid = &atomic.Int32{}
	w.backend.tool("pay", func(r run) {
		n := paid.Add(1)
		if time.Sleep(took / 2); took > 0 {
			r.say("working")
		}
		time.Sleep(took / 2)
		r.end(fmt.Sprintf(`{"content":[],"n":%d}`, n))
	})
	return paid
}

// paidAs returns which call of pay a client has the answer of, "" if it got an error.
func (a *answer) paidAs(t *testing.T) string {
	t.Helper()
	return string(wire.Lookup(a.message(t), "result", "n"))
}

// throughDoors plays a call through one door and its repeat through another. Each door is the
// first and the second once: what a door does with a call does not depend on the other.
func throughDoors(t *testing.T, play func(t *testing.T, w *world, first, second string)) {
	all := slices.Sorted(maps.Keys(doors))
	for i, first := range all {
		second := all[(i+4)%len(all)]
		t.Run(first+" then "+second, func(t *testing.T) {
			grouped(t, 1, nil, func(t *testing.T, w *world) { play(t, w, first, second) })
		})
	}
}

func TestACallWithAKeyIsExecutedOnceThroughEveryDoor(t *testing.T) {
	throughDoors(t, func(t *testing.T, w *world, first, second string) {
		paid, call, repeat := w.payment(0), doors[first], doors[second]
		for i, a := range []*answer{call(w, 1, "k", `{"a":1,"b":"x"}`), repeat(w, 2, "k", `{"b":"\u0078", "a":1}`), repeat(w, 3, "k", `{"a":1,"b":"x"}`)} {
			m := a.message(t)
			if a.paidAs(t) != "1" || string(wire.Lookup(m, "id")) != fmt.Sprint(i+1) {
				t.Errorf("request %d got %d %s", i+1, a.status, m)
			}
			if old := !strings.HasPrefix([]string{first, second, second}[i], "2026"); old && wire.Lookup(m, "result", "resultType") != nil {
				t.Errorf("an old client got %s", m)
			}
		}
		refusedKey(t, "idempotency_key_conflict", repeat(w, 4, "k", `{"a":2}`))
		if n := repeat(w, 5, "other", `{"a":1,"b":"x"}`).paidAs(t); n != "2" || paid.Load() != 2 {
			t.Errorf("another key got %s, executed %d times", n, paid.Load())
		}
	})
}

// refusedKey asserts the type of the error of a call with a key.
func refusedKey(t *testing.T, want string, a *answer) {
	t.Helper()
	m := a.message(t)
	if kind, _ := wire.String(wire.Lookup(m, "error", "data", "type")); kind != want {
		t.Errorf("got %s, want %s", m, want)
	}
}

func TestARepeatJoinsACallThatRuns(t *testing.T) {
	throughDoors(t, func(t *testing.T, w *world, first, second string) {
		w.awake("s0")
		paid := w.payment(20 * time.Second)
		got := make(chan *answer)
		go func() { got <- doors[first](w, 1, "k", `{}`) }()
		time.Sleep(5 * time.Second)
		go func() { got <- doors[second](w, 2, "k", `{}`) }()
		for range 2 {
			commontest.Equal(t, "1", (<-got).paidAs(t))
		}
		commontest.EqualIn(t, "executed", 1, paid.Load())
	})
}

func TestACallThatRunsLongerThanARepeatWaits(t *testing.T) {
	grouped(t, 1, nil, func(t *testing.T, w *world) {
		w.awake("s0")
		done := make(chan bool)
		w.backend.tool("pay", func(r run) { <-done; r.end(`{"content":[],"n":1}`) })
		first := w.begin(w.visit("s0").request("POST", keyedBody(1, "pay", `{}`, ""), "Idempotency-Key", "k"))
		synctest.Wait()
		refusedKey(t, "idempotency_key_in_progress", doors["2025, header"](w, 2, "k", `{}`))
		close(done)
		first.end()
		commontest.Equal(t, "1", doors["2026, header"](w, 3, "k", `{}`).paidAs(t))
	})
}

func TestAClientOf2026ThatGoesDoesNotCancelACallWithAKey(t *testing.T) {
	grouped(t, 1, nil, func(t *testing.T, w *world) {
		w.awake("s0")
		w.payment(10 * time.Second)
		gone := w.begin(paying("k").request())
		time.Sleep(5 * time.Second)
		gone.gone()
		commontest.Equal(t, "1", w.do(paying("k").request()).paidAs(t))
		commontest.EqualIn(t, "messages to the server", 1, len(w.backend.got))
	})
}

func paying(key string, headers ...string) ask {
	return ask{path: "/s0/mcp", method: "tools/call", params: `"name":"pay","arguments":{}`, headers: append(headers, "Idempotency-Key", key)}
}

// A client that has lost its place begins the call again, and answers the question once more.
func TestEachRoundOfACallWithAKeyIsExecutedOnce(t *testing.T) {
	grouped(t, 1, nil, func(t *testing.T, w *world) {
		w.awake("s0")
		calls := 0
		w.backend.tool("pay", func(r run) {
			if calls++; calls == 1 {
				r.end(`{"resultType":"input_required","inputRequests":{"q":{` + elicit + `}},"requestState":"s"}`)
				return
			}
			r.end(fmt.Sprintf(`{"content":[],"n":%d}`, calls))
		})
		first := paying("k")
		first.caps = allCaps
		lost, asked := w.do(first.request()).required(t), w.do(first.request()).required(t)
		refusedKey(t, "idempotency_key_in_progress", doors["2025, params"](w, 1, "k", `{}`))
		for _, r := range []rounds{asked, lost} {
			commontest.Equal(t, "2", w.do(first.retry(r, `{"q":{"action":"accept"}}`).request()).paidAs(t))
		}
		for _, door := range []string{"2025, params", "2026, header"} {
			commontest.EqualIn(t, door, "2", doors[door](w, 1, "k", `{}`).paidAs(t))
		}
	})
}

// A function may die after it has written the key and before any executor has the call.
func TestACallWithoutATraceIsUnknownAndStaysSo(t *testing.T) {
	for _, second := range []string{"2025, header", "2026, header"} {
		grouped(t, 1, nil, func(t *testing.T, w *world) {
			w.awake("s0")
			w.backend.attend = storage.Errorf(storage.NotFound, "there is no item")
			var paid atomic.Int32
			w.backend.tool("pay", func(run) { paid.Add(1) }) // it dies with its function
			gone := w.begin(paying("k").request())
			time.Sleep(time.Millisecond)
			gone.gone()
			time.Sleep(time.Minute)
			for i := range 2 {
				m := doors[second](w, 2+i, "k", `{}`).message(t)
				commontest.EqualIn(t, second, fmt.Sprint(int(wire.CodeOutcomeUnknown)), string(wire.Lookup(m, "error", "code")))
			}
			commontest.EqualIn(t, "executed", 1, paid.Load())
		})
	}
}

func TestACallThatWasNotExecutedFreesItsKey(t *testing.T) {
	for name, fail := range map[string]func(w *world){
		"refused by the backend": func(w *world) { w.backend.err = storage.Errorf(storage.Busy, "no room") },
		"ended before it was sent": func(w *world) {
			w.backend.tool("pay", func(r run) { r.fail(`{"code":-32603,"message":"no box","data":{"notExecuted":true}}`) })
		},
	} {
		grouped(t, 1, nil, func(t *testing.T, w *world) {
			w.awake("s0")
			fail(w)
			call := doors["2025, header"]
			commontest.EqualIn(t, name, "", call(w, 1, "k", `{}`).paidAs(t))
			w.backend.err = nil
			w.payment(0)
			for i := range 2 {
				commontest.EqualIn(t, name, "1", call(w, 2+i, "k", `{}`).paidAs(t))
			}
		})
	}
}

func TestKeysOfOthersAreOthers(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		paid := w.payment(0)
		for _, who := range []string{"Bearer eve", "Bearer bob"} {
			for _, path := range []string{"/s0/mcp", "/s1/mcp"} {
				a := paying("k", "Authorization", who)
				a.path = path
				w.do(a.request()).result(t)
			}
		}
		commontest.EqualIn(t, "executed", 4, paid.Load())
	})
}

func TestAKeyLastsAsLongAsItsClientAsks(t *testing.T) {
	grouped(t, 1, nil, func(t *testing.T, w *world) {
		w.payment(0)
		call := func(key, life string) string {
			a := paying(key)
			if life != "" {
				a.meta = `,"dormouse/idempotencyTtlMs":` + life
			}
			return w.do(a.request()).paidAs(t)
		}
		call("day", "")
		call("hour", "3600000")
		time.Sleep(59 * time.Minute)
		commontest.EqualIn(t, "after 59 minutes", "1 2", call("day", "")+" "+call("hour", ""))
		time.Sleep(2 * time.Minute)
		commontest.EqualIn(t, "after 61 minutes", "1 3", call("day", "")+" "+call("hour", ""))
		time.Sleep(23 * time.Hour)
		commontest.EqualIn(t, "after a day", "4", call("day", ""))
		for _, life := range []string{"59999", "86400001", `"1h"`} {
			commontest.EqualIn(t, "a life of "+life, "", call("k"+life, life))
		}
	})
}

func TestKeysThatAreNoKeys(t *testing.T) {
	tests := map[string]struct{ header, members string }{
		"no string": {"", `,"idempotencyKey":7`},
		"long":      {strings.Repeat("k", 256), ""},
		"two":       {"a", `,"idempotencyKey":"b"`},
		"control":   {"", `,"idempotencyKey":"a\u0007"`},
	}
	for name, tt := range tests {
		grouped(t, 1, nil, func(t *testing.T, w *world) {
			refusedKey(t, "idempotency_key_invalid", w.visit("s0").post(keyedBody(1, "pay", `{}`, tt.members), "Idempotency-Key", tt.header))
			commontest.EqualIn(t, name+": messages to the server", 0, len(w.backend.got))
			commontest.EqualIn(t, "the log has the key", false, strings.Contains(w.logged.String(), strings.Repeat("k", 20)))
		})
	}
}

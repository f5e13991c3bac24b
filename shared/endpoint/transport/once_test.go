package transport_test

import (
	"fmt"
	"net/http"
	"net/url"
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
	"2026, task": func(w *world, id int, key, arguments string) *answer {
		call := ask{path: "/s0/mcp", id: fmt.Sprint(id), method: "tools/call", caps: taskCaps, params: `"name":"pay","arguments":` + arguments, headers: []string{"Idempotency-Key", key}}
		got := w.do(call.request())
		result := wire.Lookup(got.message(w.t), "result")
		if kind, _ := wire.String(wire.Lookup(result, "resultType")); kind != "task" {
			return got
		}
		for made := taskOf(w.t, result); ; {
			time.Sleep(5 * time.Second)
			get := made.of("tasks/get", "")
			get.path = call.path
			switch now := taskOf(w.t, w.do(get.request()).result(w.t)); now.Status {
			case "working":
			case "failed":
				return pushed([]string{`{"jsonrpc":"2.0","id":` + call.id + `,"error":` + string(now.Error) + `}`})
			default:
				return pushed([]string{string(wire.ResultResponse([]byte(call.id), now.Result))})
			}
		}
	},
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

func TestACallWithAKeyIsExecutedOnceThroughEveryDoor(t *testing.T) {
	for first, call := range doors {
		for second, repeat := range doors {
			t.Run(first+" then "+second, func(t *testing.T) {
				grouped(t, 1, nil, func(t *testing.T, w *world) {
					var paid atomic.Int32
					w.backend.tool("pay", func(r run) { r.end(fmt.Sprintf(`{"content":[],"n":%d}`, paid.Add(1))) })
					for i, a := range []*answer{call(w, 1, "k", `{"a":1,"b":"x"}`), repeat(w, 2, "k", `{"b":"\u0078", "a":1}`), repeat(w, 3, "k", `{"a":1,"b":"x"}`)} {
						m := a.message(t)
						if string(wire.Lookup(m, "result", "n")) != "1" || string(wire.Lookup(m, "id")) != fmt.Sprint(i+1) {
							t.Errorf("request %d got %d %s", i+1, a.status, m)
						}
						if old := !strings.HasPrefix([]string{first, second, second}[i], "2026"); old && wire.Lookup(m, "result", "resultType") != nil {
							t.Errorf("an old client got %s", m)
						}
					}
					other := repeat(w, 4, "k", `{"a":2}`).message(t)
					if kind, _ := wire.String(wire.Lookup(other, "error", "data", "type")); kind != "idempotency_key_conflict" {
						t.Errorf("other arguments got %s", other)
					}
					if n := string(wire.Lookup(repeat(w, 5, "other", `{"a":1,"b":"x"}`).message(t), "result", "n")); n != "2" || paid.Load() != 2 {
						t.Errorf("another key got %s, executed %d times", n, paid.Load())
					}
				})
			})
		}
	}
}

func TestARepeatJoinsACallThatRuns(t *testing.T) {
	for first, call := range doors {
		for second, repeat := range doors {
			t.Run(first+" then "+second, func(t *testing.T) {
				grouped(t, 1, nil, func(t *testing.T, w *world) {
					w.awake("s0")
					var paid atomic.Int32
					w.backend.tool("pay", func(r run) {
						n := paid.Add(1)
						time.Sleep(10 * time.Second)
						r.say("working")
						time.Sleep(10 * time.Second)
						r.end(fmt.Sprintf(`{"content":[],"n":%d}`, n))
					})
					got := make(chan *answer)
					go func() { got <- call(w, 1, "k", `{}`) }()
					time.Sleep(5 * time.Second)
					go func() { got <- repeat(w, 2, "k", `{}`) }()
					for range 2 {
						if m := (<-got).message(t); string(wire.Lookup(m, "result", "n")) != "1" {
							t.Errorf("got %s", m)
						}
					}
					if paid.Load() != 1 {
						t.Errorf("executed %d times", paid.Load())
					}
				})
			})
		}
	}
}

func TestACallThatRunsLongerThanARepeatWaits(t *testing.T) {
	grouped(t, 1, nil, func(t *testing.T, w *world) {
		w.awake("s0")
		done := make(chan bool)
		w.backend.tool("pay", func(r run) { <-done; r.end(`{"content":[],"n":1}`) })
		first := w.begin(w.visit("s0").request("POST", keyedBody(1, "pay", `{}`, ""), "Idempotency-Key", "k"))
		synctest.Wait()
		m := doors["2025, header"](w, 2, "k", `{}`).message(t)
		if kind, _ := wire.String(wire.Lookup(m, "error", "data", "type")); kind != "idempotency_key_in_progress" {
			t.Errorf("got %s", m)
		}
		close(done)
		first.end()
		if m := doors["2026, header"](w, 3, "k", `{}`).message(t); string(wire.Lookup(m, "result", "n")) != "1" {
			t.Errorf("got %s", m)
		}
	})
}

func TestAClientOf2026ThatGoesDoesNotCancelACallWithAKey(t *testing.T) {
	grouped(t, 1, nil, func(t *testing.T, w *world) {
		w.awake("s0")
		w.backend.tool("pay", func(r run) { time.Sleep(10 * time.Second); r.end(`{"content":[],"n":1}`) })
		a := ask{path: "/s0/mcp", method: "tools/call", params: `"name":"pay","arguments":{}`, headers: []string{"Idempotency-Key", "k"}}
		gone := w.begin(a.request())
		time.Sleep(5 * time.Second)
		gone.gone()
		if m := w.do(a.request()).message(t); string(wire.Lookup(m, "result", "n")) != "1" {
			t.Errorf("got %s", m)
		}
		if n := len(w.backend.got); n != 1 {
			t.Errorf("%d messages: %q", n, w.backend.got)
		}
	})
}

// A function may die after it has written the key and before any executor has the call.
func TestACallWithoutATraceIsUnknownAndStaysSo(t *testing.T) {
	for second, repeat := range doors {
		t.Run(second, func(t *testing.T) {
			grouped(t, 1, nil, func(t *testing.T, w *world) {
				w.awake("s0")
				w.backend.attend = storage.Errorf(storage.NotFound, "there is no item")
				var paid atomic.Int32
				w.backend.tool("pay", func(run) { paid.Add(1) }) // it dies with its function
				a := ask{path: "/s0/mcp", method: "tools/call", params: `"name":"pay","arguments":{}`, headers: []string{"Idempotency-Key", "k"}}
				gone := w.begin(a.request())
				time.Sleep(time.Millisecond)
				gone.gone()
				time.Sleep(time.Minute)
				for i := range 2 {
					m := repeat(w, 2+i, "k", `{}`).message(t)
					if got := string(wire.Lookup(m, "error", "code")); got != fmt.Sprint(int(wire.CodeOutcomeUnknown)) {
						t.Errorf("got %s", m)
					}
				}
				if paid.Load() != 1 {
					t.Errorf("executed %d times", paid.Load())
				}
			})
		})
	}
}

func TestACallThatWasNotExecutedFreesItsKey(t *testing.T) {
	tests := map[string]func(w *world){
		"refused by the backend": func(w *world) { w.backend.err = storage.Errorf(storage.Busy, "no room") },
		"ended before it was sent": func(w *world) {
			w.backend.tool("pay", func(r run) { r.fail(`{"code":-32603,"message":"no box","data":{"notExecuted":true}}`) })
		},
	}
	for name, fail := range tests {
		t.Run(name, func(t *testing.T) {
			grouped(t, 1, nil, func(t *testing.T, w *world) {
				w.awake("s0")
				fail(w)
				call := doors["2025, header"]
				if m := call(w, 1, "k", `{}`).message(t); wire.Lookup(m, "result", "n") != nil {
					t.Errorf("got %s", m)
				}
				w.backend.err = nil
				w.backend.tool("pay", func(r run) { r.end(`{"content":[],"n":1}`) })
				for i := range 2 {
					if m := call(w, 2+i, "k", `{}`).message(t); string(wire.Lookup(m, "result", "n")) != "1" {
						t.Errorf("got %s", m)
					}
				}
			})
		})
	}
}

func TestKeysOfOthersAreOthers(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		var paid atomic.Int32
		w.backend.tool("pay", func(r run) { r.end(fmt.Sprintf(`{"content":[],"n":%d}`, paid.Add(1))) })
		for _, who := range []string{"Bearer eve", "Bearer bob"} {
			for _, path := range []string{"/s0/mcp", "/s1/mcp"} {
				a := ask{path: path, method: "tools/call", params: `"name":"pay","arguments":{}`, headers: []string{"Idempotency-Key", "k", "Authorization", who}}
				w.do(a.request()).result(t)
			}
		}
		if paid.Load() != 4 {
			t.Errorf("executed %d times", paid.Load())
		}
	})
}

func TestAKeyLastsAsLongAsItsClientAsks(t *testing.T) {
	grouped(t, 1, nil, func(t *testing.T, w *world) {
		var paid atomic.Int32
		w.backend.tool("pay", func(r run) { r.end(fmt.Sprintf(`{"content":[],"n":%d}`, paid.Add(1))) })
		call := func(key, life string) string {
			a := ask{path: "/s0/mcp", method: "tools/call", params: `"name":"pay","arguments":{}`, headers: []string{"Idempotency-Key", key}}
			if life != "" {
				a.meta = `,"dormouse/idempotencyTtlMs":` + life
			}
			return string(wire.Lookup(w.do(a.request()).message(t), "result", "n"))
		}
		call("day", "")
		call("hour", "3600000")
		time.Sleep(59 * time.Minute)
		if day, hour := call("day", ""), call("hour", ""); day != "1" || hour != "2" {
			t.Errorf("after 59 minutes %s and %s", day, hour)
		}
		time.Sleep(2 * time.Minute)
		if day, hour := call("day", ""), call("hour", ""); day != "1" || hour != "3" {
			t.Errorf("after 61 minutes %s and %s", day, hour)
		}
		time.Sleep(23 * time.Hour)
		commontest.EqualIn(t, "after a day", "4", call("day", ""))
		for _, life := range []string{"59999", "86400001", `"1h"`, "-1", "1e9"} {
			if n := call("k"+life, life); n != "" {
				t.Errorf("a life of %s was taken", life)
			}
		}
	})
}

func TestKeysThatAreNoKeys(t *testing.T) {
	tests := map[string]struct{ header, members string }{
		"no string":   {"", `,"idempotencyKey":7`},
		"empty":       {"", `,"idempotencyKey":""`},
		"long":        {strings.Repeat("k", 256), ""},
		"two":         {"a", `,"idempotencyKey":"b"`},
		"two in body": {"", `,"idempotencyKey":"b","_meta":{"io.modelcontextprotocol/idempotencyKey":"c"}`},
		"control":     {"", `,"idempotencyKey":"a\u0007"`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			grouped(t, 1, nil, func(t *testing.T, w *world) {
				headers := []string{}
				if tt.header != "" {
					headers = []string{"Idempotency-Key", tt.header}
				}
				m := w.visit("s0").post(keyedBody(1, "pay", `{}`, tt.members), headers...).message(t)
				if kind, _ := wire.String(wire.Lookup(m, "error", "data", "type")); kind != "idempotency_key_invalid" {
					t.Errorf("got %s", m)
				}
				if len(w.backend.got) > 0 {
					t.Errorf("sent %q", w.backend.got)
				}
				if tt.header != "" && strings.Contains(w.logged.String(), tt.header+`"`) && len(tt.header) > 10 {
					t.Error("the log has the key")
				}
			})
		})
	}
}

// The answer outlives the session, and no key is in a log line or in the store.
func TestTheAnswerOutlivesItsSession(t *testing.T) {
	grouped(t, 1, nil, func(t *testing.T, w *world) {
		w.backend.tool("pay", func(r run) { r.end(`{"content":[],"n":1}`) })
		c := w.visit("s0")
		c.post(keyedBody(1, "pay", `{}`, ""), "Idempotency-Key", "hush-hush-key")
		if a := c.del(); a.status >= 300 {
			t.Fatalf("DELETE: %d", a.status)
		}
		time.Sleep(23 * time.Hour)
		if m := doors["2025, group"](w, 2, "hush-hush-key", `{}`).message(t); string(wire.Lookup(m, "result", "n")) != "1" {
			t.Errorf("got %s", m)
		}
		if strings.Contains(w.logged.String(), "hush-hush-key") {
			t.Error("the log has the key")
		}
	})
}

package front_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// listKinds are the methods of lists, with the entry that each server of busyGroup has.
var listKinds = map[string]string{
	"tools/list": `{"tools":[{"name":"t"}]}`, "prompts/list": `{"prompts":[{"name":"p"}]}`,
	"resources/list": `{"resources":[{"uri":"a:b","name":"r"}]}`, "resources/templates/list": `{"resourceTemplates":[{"uriTemplate":"a:{b}","name":"r"}]}`,
}

// busyGroup runs a test with three servers that no record knows. Like processes, they refuse
// a request whose id is that of another request in flight of the same session. An answer takes
// a second.
func busyGroup(t *testing.T, test func(t *testing.T, w *world)) {
	grouped(t, 3, nil, func(t *testing.T, w *world) {
		w.opts.Servers = func(name string) (host.Server, bool) {
			return host.Server{Name: name, Digest: "new " + name, Record: true, Anonymous: true}, strings.HasPrefix(name, "s")
		}
		var mu sync.Mutex
		flying := map[string]bool{}
		for method, list := range listKinds {
			w.backend.tool(method, func(r run) {
				id := string(r.session) + string(r.requests[0])
				mu.Lock()
				twice := flying[id]
				flying[id] = true
				mu.Unlock()
				if twice {
					r.fail(`{"code":-32600,"message":"duplicate request id"}`)
					return
				}
				time.Sleep(time.Second)
				mu.Lock()
				delete(flying, id)
				mu.Unlock()
				r.end(list)
			})
		}
		test(t, w)
	})
}

// whole reports what is wrong with a list of the three servers.
func whole(method, result string) string {
	list, _, _ := strings.Cut(strings.TrimPrefix(listKinds[method], `{"`), `"`)
	n := 0
	wire.Elements(wire.Lookup([]byte(result), list), func(json.RawMessage) bool { n++; return true })
	if meta := wire.Lookup([]byte(result), "_meta", "dormouse/unavailable"); n != 3 || meta != nil {
		return fmt.Sprintf("%s: %d entries of 3: %s", method, n, result)
	}
	return ""
}

// allWhole checks the answers to so many requests of each kind, whose ids begin with the method.
func allWhole(t *testing.T, times int, answers []string) {
	t.Helper()
	if len(answers) != times*len(listKinds) {
		t.Errorf("%d answers: %q", len(answers), answers)
	}
	for _, raw := range answers {
		id, _ := wire.String(wire.Lookup([]byte(raw), "id"))
		method, _, _ := strings.Cut(id, " ")
		if wrong := whole(method, string(wire.Lookup([]byte(raw), "result"))); wrong != "" {
			t.Error(wrong)
		}
	}
}

// However many lists are asked for at once, each has the entries of all servers.
func TestListsAskedAtOnceAreWhole(t *testing.T) {
	const times = 3
	t.Run("sessions", func(t *testing.T) {
		busyGroup(t, func(t *testing.T, w *world) {
			var answers []<-chan *answer
			var methods []string
			for range 2 {
				c := w.openGroup()
				for method := range listKinds {
					for i := range times {
						methods = append(methods, method)
						answers = append(answers, w.start(c.request("POST", fmt.Sprintf(`{"jsonrpc":"2.0","id":"%s %d","method":%q}`, method, i, method))))
					}
				}
			}
			for i, got := range answers {
				if wrong := whole(methods[i], string(wire.Lookup([]byte((<-got).body), "result"))); wrong != "" {
					t.Error(wrong)
				}
			}
		})
	})
	t.Run("2026-07-28", func(t *testing.T) {
		busyGroup(t, func(t *testing.T, w *world) {
			var answers []<-chan *answer
			var methods []string
			for method := range listKinds {
				for range times {
					methods = append(methods, method)
					answers = append(answers, w.start(ask{path: "/mcp", method: method}.request()))
				}
			}
			for i, got := range answers {
				if wrong := whole(methods[i], string((<-got).result(t))); wrong != "" {
					t.Error(wrong)
				}
			}
		})
	})
	t.Run("HTTP+SSE", func(t *testing.T) {
		busyGroup(t, func(t *testing.T, w *world) {
			c := w.openSSE("", "").open()
			for method := range listKinds {
				for i := range times {
					w.start(request("POST", "/message?sessionId="+c.session, fmt.Sprintf(`{"jsonrpc":"2.0","id":"%s %d","method":%q}`, method, i, method)))
				}
			}
			time.Sleep(5 * time.Second)
			allWhole(t, times, c.messages()[1:])
		})
	})
	t.Run("WebSocket", func(t *testing.T) {
		busyGroup(t, func(t *testing.T, w *world) {
			l := w.link(url.Values{"group": {"all"}})
			w.backend.clients = l
			l.open()
			var mu sync.Mutex
			var all sync.WaitGroup
			var got []string
			for method := range listKinds {
				for i := range times {
					all.Go(func() {
						said := l.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":"%s %d","method":%q}`, method, i, method))
						mu.Lock()
						defer mu.Unlock()
						got = append(got, said...)
					})
				}
			}
			all.Wait()
			allWhole(t, times, got)
		})
	})
}

// A server that has been called has a process of the client's own. Lists come from that
// process, over each transport.
func TestListComesFromTheProcessThatTheClientUses(t *testing.T) {
	tools := func(w *world, used func() session.ID) func(r run) {
		return func(r run) {
			name := "of another process"
			if r.session == used() {
				name = "of its own"
			}
			r.end(`{"tools":[{"name":"` + name + `"}]}`)
		}
	}
	list := `{"jsonrpc":"2.0","id":"l","method":"tools/list"}`
	grouped(t, 1, nil, func(t *testing.T, w *world) {
		w.keep("s0", "tools/list 2025-11-25  anyone", `{"gen":1,"list":{"tools":[{"name":"old"}]}}`)
		c := w.openSSE("", "").open()
		w.backend.tool("tools/list", tools(w, func() session.ID { return c.ofMember("s0") }))
		c.accepted(callOf("s0__echo"))
		w.awake("s0")
		c.accepted(list)
		time.Sleep(time.Second)
		if got := c.messages(); !strings.Contains(got[len(got)-1], "its_own") {
			t.Errorf("over HTTP+SSE: %q", got)
		}
	})
	grouped(t, 1, nil, func(t *testing.T, w *world) {
		w.keep("s0", "tools/list 2025-11-25  anyone", `{"gen":1,"list":{"tools":[{"name":"old"}]}}`)
		l := w.link(url.Values{"group": {"all"}})
		w.backend.clients = l
		l.open()
		w.backend.tool("tools/list", tools(w, func() session.ID { return host.MemberID(l.ofGroup(), "s0") }))
		l.say(callOf("s0__echo"))
		w.awake("s0")
		if got := l.say(list); len(got) != 1 || !strings.Contains(got[0], "its_own") {
			t.Errorf("over WebSocket: %q", got)
		}
	})
}

// A list never becomes an old one in silence: it says which server could not be asked.
func TestListSaysThatAServersPartIsOld(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		w.keep("s1", "tools/list 2025-11-25  anyone", `{"gen":1,"list":{"tools":[{"name":"old"}]}}`)
		w.keep("s1", "tools/list 2025-11-25 elicitation,elicitation.form,elicitation.url,roots,sampling,sampling.context,sampling.tools anyone", `{"gen":1,"list":{"tools":[{"name":"old"}]}}`)
		w.awake("s1")
		w.backend.tool("tools/list", func(r run) { r.fail(`{"code":-32603,"message":"it has exited"}`) })
		want := `{"dormouse/unavailable":{"s1":"it has exited; this is its last known list"}}`
		a := w.openGroup().post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		modern := w.do(ask{path: "/mcp", method: "tools/list"}.request())
		for _, body := range []string{a.body, modern.body} {
			if names := toolNames(t, body); !slices.Contains(names, "s1__old") || !strings.Contains(body, want[1:len(want)-1]) {
				t.Errorf("got %s", body)
			}
		}
		// A server that has no such lists any more has none.
		w.backend.tool("tools/list", func(r run) { r.fail(`{"code":-32601,"message":"no tools here"}`) })
		a = w.openGroup().post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		if names := toolNames(t, a.body); slices.Contains(names, "s1__old") || strings.Contains(a.body, "unavailable") {
			t.Errorf("got %s", a.body)
		}
		synctest.Wait()
	})
}

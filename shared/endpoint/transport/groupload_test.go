package transport_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
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
		w.opts.Servers = func(name string) (sessions.Server, bool) {
			return sessions.Server{Name: name, Digest: "new " + name, Record: true, Anonymous: true}, strings.HasPrefix(name, "s")
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
	n := len(slices.Collect(wire.Elements(wire.Lookup([]byte(result), list))))
	if meta := wire.Lookup([]byte(result), "_meta", "dormouse/unavailable"); n != 3 || meta != nil {
		return fmt.Sprintf("%s: %d entries of 3: %s", method, n, result)
	}
	return ""
}

// However many lists are asked for at once, each has the entries of all servers.
func TestListsAskedAtOnceAreWhole(t *testing.T) {
	const times = 3
	each := func(ask func(method, id string)) {
		for method := range listKinds {
			for i := range times {
				ask(method, fmt.Sprintf(`"%s %d"`, method, i))
			}
		}
	}
	message := func(method, id string) string { return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `"}` }
	responses := func(w *world, request func(method, id string) *http.Request) (answers []string) {
		var conns []*conn
		each(func(method, id string) { conns = append(conns, w.begin(request(method, id))) })
		for _, c := range conns {
			answers = append(answers, string(c.end().message(w.t)))
		}
		return answers
	}
	for name, all := range map[string]func(w *world) []string{
		"sessions": func(w *world) []string {
			c := w.openGroup()
			return responses(w, func(method, id string) *http.Request { return c.request("POST", message(method, id)) })
		},
		"2026-07-28": func(w *world) []string {
			return responses(w, func(method, id string) *http.Request { return ask{path: "/mcp", id: id, method: method}.request() })
		},
		"HTTP+SSE": func(w *world) []string {
			c := w.openSSE("", "").open()
			each(func(method, id string) {
				w.begin(request("POST", "/message?sessionId="+c.session, message(method, id)))
			})
			time.Sleep(5 * time.Second)
			return c.messages()[1:]
		},
		"WebSocket": func(w *world) (got []string) {
			l := w.link(url.Values{"group": {"all"}}).open()
			var mu sync.Mutex
			var said sync.WaitGroup
			each(func(method, id string) {
				said.Go(func() {
					heard := l.say(message(method, id))
					mu.Lock()
					defer mu.Unlock()
					got = append(got, heard...)
				})
			})
			said.Wait()
			return got
		},
	} {
		t.Run(name, func(t *testing.T) {
			busyGroup(t, func(t *testing.T, w *world) {
				answers := all(w)
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
			})
		})
	}
}

// The first list of 200 servers has the entries of all that have started in time, and names the
// others, with the reason. The session of the group is written once for all of them.
func TestTheFirstListOfManyServersIsWhole(t *testing.T) {
	const servers = 200
	for era, list := range map[string]func(w *world) *answer{
		"session":    func(w *world) *answer { return w.openGroup().post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`) },
		"2026-07-28": func(w *world) *answer { return w.do(ask{path: "/mcp", method: "tools/list"}.request()) },
	} {
		t.Run(era, func(t *testing.T) {
			grouped(t, servers, nil, func(t *testing.T, w *world) {
				counting := w.count()
				w.opts.Servers = func(name string) (sessions.Server, bool) {
					return sessions.Server{Name: name, Digest: "new " + name, Record: true, Anonymous: true}, strings.HasPrefix(name, "s")
				}
				w.backend.tool("tools/list", func(r run) {
					switch s, _, _ := r.w.store.Load(r.ctx, r.session, ""); s.Server {
					case "s7", "s70": // slow
						time.Sleep(19 * time.Second)
					case "s8", "s80": // too slow
						time.Sleep(time.Minute)
					case "s9":
						r.fail(`{"code":-32603,"message":"it has exited"}`)
						return
					}
					r.end(listKinds["tools/list"])
				})
				lists := func(want map[string]string) {
					t.Helper()
					body := list(w).body
					raw := wire.Lookup([]byte(body[max(0, strings.Index(body, `{"jsonrpc"`)):]), "result")
					n := len(slices.Collect(wire.Elements(wire.Lookup(raw, "tools"))))
					var missing map[string]string
					if err := json.Unmarshal(wire.Lookup(raw, "_meta", "dormouse/unavailable"), &missing); err != nil {
						t.Fatalf("%v in %s", err, body)
					}
					if d := cmp.Diff(want, missing); d != "" || n != servers-len(want) {
						t.Errorf("%d tools, %s", n, d)
					}
				}
				const late = "it has not answered within 20s; ask for the list again"
				lists(map[string]string{"s8": late, "s80": late, "s9": "it has exited"})
				if saves := counting.Counts().Calls["Save"]; saves > 2 {
					t.Errorf("%d sessions were written", saves)
				}
				time.Sleep(time.Minute)
				lists(map[string]string{"s9": "it has exited"})
			})
		})
	}
}

// A server that has been called has a process of the client's own. Lists come from that
// process, over each transport.
func TestListComesFromTheProcessThatTheClientUses(t *testing.T) {
	tools := func(w *world, used func() storage.ID) func(r run) {
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
		w.backend.tool("tools/list", tools(w, func() storage.ID { return c.ofMember("s0") }))
		c.accepted(callOf("s0__echo"))
		w.awake("s0")
		c.accepted(list)
		time.Sleep(time.Second)
		commontest.Contains(t, "over HTTP+SSE", "its_own", strings.Join(c.messages(), "\n"))
	})
	grouped(t, 1, nil, func(t *testing.T, w *world) {
		w.keep("s0", "tools/list 2025-11-25  anyone", `{"gen":1,"list":{"tools":[{"name":"old"}]}}`)
		l := w.link(url.Values{"group": {"all"}})
		l.open()
		w.backend.tool("tools/list", tools(w, func() storage.ID { return sessions.MemberID(l.ofGroup(), "s0") }))
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

// saysWhenCalled has each tool say something outside of its call, and tell that a resource was
// updated, a second after it has answered.
func (w *world) saysWhenCalled(address func(storage.Address) storage.Address) {
	for _, tool := range []string{"tool0", "tool1", "tool2"} {
		w.backend.tool(tool, func(r run) {
			r.end(`{"content":[]}`)
			time.Sleep(time.Second)
			a := address(storage.Address{Session: r.session, Stream: storage.Standalone})
			out := r.outside().to(a)
			out.say(tool)
			out.append(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:`+tool+`"}}`, false)
		})
	}
}

func changed(uri string) string {
	return `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"` + uri + `"}}`
}

// A client that listens before its first call hears each server as soon as it says something,
// also servers that it calls later.
func TestStreamThatWasOpenedFirstHearsEachServerAtOnce(t *testing.T) {
	grouped(t, 3, nil, func(t *testing.T, w *world) {
		w.saysWhenCalled(func(a storage.Address) storage.Address { return a })
		c := w.openGroup()
		began := time.Now()
		stream := w.begin(c.request("GET", ""))
		var want []string
		calls := map[string]time.Duration{}
		for i, tool := range []string{"tool1", "tool0", "tool1"} {
			time.Sleep(2 * time.Second)
			if i < 2 {
				calls[said(tool)] = time.Since(began)
			}
			server := "s" + tool[4:]
			c.call(server + "__" + tool)
			want = append(want, said(tool), changed("dormouse://"+server+"/a:"+tool))
		}
		a := stream.end()
		if got := a.datas(t); !slices.Equal(got, want) {
			t.Errorf("the stream has %q", got)
		}
		for text, called := range calls {
			for _, f := range a.flush {
				if strings.Contains(f.text, text) {
					// Two writers of a session pause for milliseconds before one tries again.
					if late := f.at - called - time.Second; late > 10*time.Millisecond {
						t.Errorf("%s came %s late", text, late)
					}
					break
				}
			}
		}
		// The client comes back with what it has, and misses nothing.
		w.outside(sessions.MemberID(storage.ID(c.session), "s0")).say("later")
		if got := c.get(a.lastID(t)).datas(t); !slices.Equal(got, []string{said("later")}) {
			t.Errorf("the next stream has %q", got)
		}
	})
}

// A stream whose server has closed it ends, although the session may use further servers.
func TestStreamOfAGroupEndsWithThoseOfItsServers(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		c := w.openGroup()
		c.call("s0__echo")
		stream := w.begin(c.request("GET", ""))
		time.Sleep(time.Second)
		if a := c.del(); a.status != 204 {
			t.Fatal(a.body)
		}
		stream.end()
	})
}

// The same holds for the streams of the other transports.
func TestOtherTransportsHearEachServerAtOnce(t *testing.T) {
	t.Run("HTTP+SSE", func(t *testing.T) {
		grouped(t, 3, nil, func(t *testing.T, w *world) {
			w.saysWhenCalled(func(a storage.Address) storage.Address { a.LegacySSE = true; return a })
			c := w.openSSE("", "").open()
			began := time.Now()
			c.accepted(callOf("s1__tool1"))
			time.Sleep(2 * time.Second)
			a := c.gone()
			if got := messagesOf(t, a); !slices.Equal(got[2:], []string{said("tool1"), changed("dormouse://s1/a:tool1")}) {
				t.Errorf("the stream has %q", got)
			}
			if a.flush[len(a.flush)-1].at > time.Since(began) {
				t.Errorf("late: %v", a.flush)
			}
		})
	})
	t.Run("WebSocket", func(t *testing.T) {
		grouped(t, 3, nil, func(t *testing.T, w *world) {
			l := w.link(url.Values{"group": {"all"}})
			l.open()
			w.saysWhenCalled(func(a storage.Address) storage.Address {
				a.Conn, a.Through = l.conn, &storage.Through{Group: l.ofGroup(), Server: "s1"}
				return a
			})
			got := l.say(callOf("s1__tool1"))
			time.Sleep(time.Second)
			if got = append(got, l.heard()...)[1:]; !slices.Equal(got, []string{said("tool1"), changed("dormouse://s1/a:tool1")}) {
				t.Errorf("the client got %q", got)
			}
		})
	})
}

// A subscription of 2026-07-28 hears a server that had never started when it was made.
func TestSubscriptionHearsAServerThatStartsLater(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		w.opts.Limit = time.Minute
		known := w.opts.Servers
		w.opts.Servers = func(name string) (sessions.Server, bool) {
			s, ok := known(name)
			if name == "s1" {
				s.Digest = "new"
			}
			return s, ok
		}
		listens := w.begin(ask{path: "/mcp", id: "41", method: "subscriptions/listen", params: `"notifications":{"toolsListChanged":true}`}.request())
		time.Sleep(time.Second)
		if got := w.taken(); len(got) > 0 {
			t.Errorf("the servers got %q", got)
		}
		w.do(ask{path: "/mcp", method: "tools/call", params: `"name":"s1__tool1","arguments":{}`}.request()).result(t)
		w.pushedBy("s1", `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		time.Sleep(time.Second)
		a := listens.end()
		if got := a.datas(t); len(got) != 3 || !strings.Contains(got[1], "notifications/tools/list_changed") {
			t.Errorf("the listener heard %q", got)
		}
	})
}

// Without prefixes, too, a subscription reaches the server that has the resource.
func TestSubscriptionToAResourceWithoutPrefix(t *testing.T) {
	grouped(t, 2, func(g *transport.Group) { g.Plain = true }, func(t *testing.T, w *world) {
		w.opts.Limit = time.Minute
		w.keep("s1", wire.V20251125, `{"protocolVersion":"2025-11-25",`+listenable[1:])
		w.keep("s1", "resources/list 2025-11-25 elicitation,elicitation.form,elicitation.url,roots,sampling,sampling.context,sampling.tools anyone", `{"gen":1,"says":true,"list":{"resources":[{"uri":"file:///a"}]}}`)
		respond := func(r run) {
			r.append(`{"jsonrpc":"2.0","id":`+string(r.requests[0])+`,"result":{}}`, true)
		}
		w.backend.tool("resources/subscribe", respond)
		w.backend.tool("resources/unsubscribe", respond)
		listens := w.begin(ask{path: "/mcp", id: "41", method: "subscriptions/listen", params: `"notifications":{"resourceSubscriptions":["file:///a","file:///of-nobody"]}`}.request())
		time.Sleep(time.Second)
		w.pushedBy("s1", `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///a"}}`)
		a := listens.end()
		if got := a.datas(t); len(got) != 3 || got[0] != acknowledged(`{"resourceSubscriptions":["file:///a"]}`) || !strings.Contains(got[1], `"params":{"uri":"file:///a"`) {
			t.Errorf("the listener heard %q", got)
		}
	})
}

// An id that Dormouse has not made is refused, as at a server.
func TestBadEventIDIsRefusedAtAGroup(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		c := w.openGroup()
		c.call("s0__echo")
		for _, id := range []string{"x", "12", "s0~", "s0~x", "s0~1;s1", "s0~1;s1~-1", "s0~x/y", "~~1"} {
			if a := c.get(id); a.status != 400 {
				t.Errorf("%s: got %d %s", id, a.status, a.body)
			}
		}
		for _, id := range []string{"x", "s0~1", "abc;~x", "abc;"} {
			if a := w.do(request("GET", "/sse", "", "Accept", "text/event-stream", "Last-Event-ID", id)); a.status != 400 {
				t.Errorf("HTTP+SSE, %s: got %d %s", id, a.status, a.body)
			}
		}
		if a := c.get("s0~0;gone~7"); a.status != 200 { // a server that is not in the group any more
			t.Errorf("got %d %s", a.status, a.body)
		}
	})
}

// A log level that does not exist is refused, and the session keeps its own.
func TestUnknownLogLevelIsRefusedAtAGroup(t *testing.T) {
	grouped(t, 1, nil, func(t *testing.T, w *world) {
		c := w.openGroup()
		c.call("s0__echo")
		want := `{"jsonrpc":"2.0","id":5,"error":{"code":-32602,"message":"there is no log level \"loud\"; send one of debug, info, notice, warning, error, critical, alert, emergency"}}`
		if a := c.post(`{"jsonrpc":"2.0","id":5,"method":"logging/setLevel","params":{"level":"loud"}}`); a.body != want {
			t.Errorf("got %s", a.body)
		}
		if a := c.post(`{"jsonrpc":"2.0","id":5,"method":"logging/setLevel","params":{}}`); !strings.Contains(a.body, "-32602") {
			t.Errorf("without a level: %s", a.body)
		}
		if s, _, err := w.store.Load(t.Context(), storage.ID(c.session), ""); err != nil || s.Level != "" {
			t.Errorf("the level is %q, %v", s.Level, err)
		}
	})
}

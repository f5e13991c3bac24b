package transport_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// listKinds are the methods of lists, with the entry that each server of busyGroup has.
var listKinds = map[string]string{
	"tools/list": `{"tools":[{"name":"t"}]}`, "prompts/list": `{"prompts":[{"name":"p"}]}`,
	"resources/list": `{"resources":[{"uri":"a:b","name":"r"}]}`, "resources/templates/list": `{"resourceTemplates":[{"uriTemplate":"a:{b}","name":"r"}]}`,
}

// busyGroup runs a test with three servers that no record knows. Like processes, they refuse a request
// whose id is that of another request in flight of the same session. An answer takes a second.
func busyGroup(t *testing.T, test func(t *testing.T, w *world)) {
	grouped(t, 3, nil, func(t *testing.T, w *world) {
		w.change(func(s *sessions.Server) { s.Digest = "new " + s.Name })
		var flying sync.Map
		for method, list := range listKinds {
			w.backend.tool(method, func(r run) {
				id := string(r.session) + string(r.requests[0])
				if _, twice := flying.LoadOrStore(id, true); twice {
					r.fail(`{"code":-32600,"message":"duplicate request id"}`)
					return
				}
				time.Sleep(time.Second)
				flying.Delete(id)
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
	} {
		t.Run(name, func(t *testing.T) {
			busyGroup(t, func(t *testing.T, w *world) {
				answers := all(w)
				commontest.EqualIn(t, "answers", times*len(listKinds), len(answers))
				for _, raw := range answers {
					id, _ := wire.String(wire.Lookup([]byte(raw), "id"))
					method, _, _ := strings.Cut(id, " ")
					commontest.Equal(t, "", whole(method, string(wire.Lookup([]byte(raw), "result"))))
				}
			})
		})
	}
}

// The first list of 200 servers has the entries of all that have started in time, and names the
// others, with the reason. The session of the group is written once for all of them.
func TestTheFirstListOfManyServersIsWhole(t *testing.T) {
	const servers = 200
	grouped(t, servers, nil, func(t *testing.T, w *world) {
		counting := w.count()
		w.change(func(s *sessions.Server) { s.Digest = "new " + s.Name })
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
		lists := func(want map[string]string, list *answer) {
			t.Helper()
			raw := wire.Lookup(list.message(t), "result")
			var missing map[string]string
			commontest.OK(t, json.Unmarshal(wire.Lookup(raw, "_meta", "dormouse/unavailable"), &missing))
			commontest.Same(t, want, missing)
			commontest.EqualIn(t, "tools", servers-len(want), len(slices.Collect(wire.Elements(wire.Lookup(raw, "tools")))))
		}
		const late = "it has not answered within 20s; ask for the list again"
		c := w.openGroup()
		lists(map[string]string{"s8": late, "s80": late, "s9": "it has exited"}, c.post(list))
		if saves := counting.Counts().Calls["Save"]; saves > 2 {
			t.Errorf("%d sessions were written", saves)
		}
		time.Sleep(time.Minute)
		lists(map[string]string{"s9": "it has exited"}, c.post(list))
	})
}

// A list never becomes an old one in silence: it says which server could not be asked.
func TestListSaysThatAServersPartIsOld(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		for _, abilities := range []string{"", ofModern} {
			w.keep("s1", "tools/list 2025-11-25 "+abilities+" anyone", `{"gen":1,"list":{"tools":[{"name":"old"}]}}`)
		}
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

// A call at a group is checked like one after a list at the server's own address, although the
// list of a group asks no server, has several pages, or was never asked for.
func TestToolsAreKnownBeforeTheirFirstCall(t *testing.T) {
	const tools = `{"name":"first","inputSchema":{"type":"object"},"execution":{"taskSupport":"forbidden"}}`
	const more = `{"name":"tool1","execution":{"taskSupport":"required"}},{"name":"city","inputSchema":{"type":"object","properties":{"city":{"type":"string","x-mcp-header":"City"}}}}`
	for name, first := range map[string]func(w *world){
		"cold":         func(*world) {},
		"after a list": func(w *world) { w.do(ask{path: "/mcp", method: "tools/list"}.request()).result(w.t) },
		"from the record": func(w *world) {
			w.keepList("s1", "tools/list", `{"tools":[`+tools+`,`+more+`]}`)
		},
		"after a late list": func(w *world) {
			w.keepList("s1", "tools/list", `{"tools":[{"name":"tool1"}]}`)
			w.do(ask{path: "/mcp", method: "tools/call", params: `"name":"s1__tool1"`}.request()).result(w.t)
			w.keepList("s1", "tools/list", `{"tools":[`+tools+`,`+more+`]}`)
			w.do(ask{path: "/mcp", method: "tools/list"}.request()).result(w.t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			grouped(t, 2, nil, func(t *testing.T, w *world) {
				if name == "cold" || name == "after a list" {
					w.unlisted("s1")
				}
				w.backend.tool("tools/list", func(r run) {
					if strings.Contains(r.raw, `"cursor":"2"`) {
						r.end(`{"tools":[` + more + `]}`)
						return
					}
					r.end(`{"tools":[` + tools + `],"nextCursor":"2"}`)
				})
				w.after("tool1", 10*time.Second)
				w.opts.Limit = time.Minute
				first(w)
				w.taken()
				call := ask{path: "/mcp", method: "tools/call", params: `"name":"s1__tool1","arguments":{}`}
				w.do(call.request()).is(t, "a call without tasks", 400, wire.CodeMissingCapability)
				city := ask{path: "/mcp", method: "tools/call", params: `"name":"s1__city","arguments":{"city":"x"}`, headers: []string{"Mcp-Param-City", "y"}}
				w.do(city.request()).is(t, "another city", 400, wire.CodeHeaderMismatch)
				commontest.EqualIn(t, "calls of the server", 0, len(slicesWith(w.taken(), "tools/call")))
				call.caps = taskCaps
				began := time.Now()
				w.becomes(call)
				if took := time.Since(began); took > time.Second {
					t.Errorf("the call became a task after %s", took)
				}
			})
		})
	}
}

// A server that does not tell its tools is called nevertheless, and is asked for them only if
// it may answer another time.
func TestToolsOfAServerThatDoesNotListThem(t *testing.T) {
	for name, tt := range map[string]struct {
		list  func(run)
		lists int
	}{
		"refuses":   {func(r run) { r.fail(`{"code":-32601,"message":"no"}`) }, 1},
		"fails":     {func(r run) { r.fail(`{"code":-32603,"message":"no"}`) }, 2},
		"is silent": {func(run) {}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			grouped(t, 1, nil, func(t *testing.T, w *world) {
				w.opts.Limit = time.Minute
				w.change(func(s *sessions.Server) { s.Digest, s.Anonymous = "new", false })
				w.backend.tool("tools/list", tt.list)
				for range 2 {
					a := w.do(ask{path: "/mcp", method: "tools/call", params: `"name":"s0__echo"`}.request())
					commontest.Contains(t, "", `"content":[]`, a.body)
				}
				got := w.taken()
				if n := len(slicesWith(got, `"tools/list"`)); n != tt.lists || len(got) != n+2 {
					t.Errorf("the server got %q", got)
				}
			})
		})
	}
}

// A first call at a group wakes no server whose caller lacks what the server needs.
func TestFirstCallOfAnUnconnectedUserWakesNothing(t *testing.T) {
	grouped(t, 1, nil, func(t *testing.T, w *world) {
		w.change(func(s *sessions.Server) { s.Digest, s.Anonymous, s.Providers = "new", false, []string{"github"} })
		w.secrets = unconnectedUser{}
		a := w.do(ask{path: "/mcp", method: "tools/call", params: `"name":"s0__echo"`}.request())
		commontest.Contains(t, "the answer", "connect first", a.body)
		w.silent()
	})
}

type unconnectedUser struct{}

func (unconnectedUser) Secrets(_ context.Context, want storage.Needs) (map[string]storage.Secret, error) {
	if !want.Need {
		return nil, nil
	}
	return nil, storage.Errorf(storage.Forbidden, "connect first").Because(&storage.NotConnected{})
}

package transport_test

import (
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

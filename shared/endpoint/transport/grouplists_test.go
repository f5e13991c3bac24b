package transport_test

import (
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

// However many lists are asked for at once, each has the entries of all servers. Like processes, these
// refuse a request whose id is that of another request in flight of the same session.
func TestListsAskedAtOnceAreWhole(t *testing.T) {
	kinds := map[string]string{
		"tools/list": `{"tools":[{"name":"t"}]}`, "prompts/list": `{"prompts":[{"name":"p"}]}`, "resources/list": `{"resources":[{"uri":"a:b","name":"r"}]}`,
	}
	grouped(t, 3, nil, func(t *testing.T, w *world) {
		w.change(func(s *sessions.Server) { s.Digest = "new " + s.Name }) // which no record knows
		var flying sync.Map
		for method, list := range kinds {
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
		c := w.openGroup()
		lists := map[*conn]string{}
		for method := range kinds {
			for range 3 {
				lists[w.begin(c.request("POST", `{"jsonrpc":"2.0","id":7,"method":"`+method+`"}`))] = method
				lists[w.begin(ask{path: "/mcp", method: method}.request())] = method
			}
		}
		for c, method := range lists {
			key, _, _ := strings.Cut(method, "/")
			result := wire.Lookup(c.end().message(t), "result")
			if n := len(slices.Collect(wire.Elements(wire.Lookup(result, key)))); n != 3 || wire.Lookup(result, "_meta", "dormouse/unavailable") != nil {
				t.Errorf("%s: %d entries of 3: %s", method, n, result)
			}
		}
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
		"cold": func(*world) {},
		"from the record": func(w *world) {
			w.keepList("s1", "tools/list", `{"tools":[`+tools+`,`+more+`]}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			grouped(t, 2, nil, func(t *testing.T, w *world) {
				if name == "cold" {
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

package transport_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// lane is a way in which clients reach the tools of server s0.
type lane struct {
	name   string
	prefix string // of names: "" at the server's own address
	search bool   // with tools=search
	// ask sends a request of a fresh client, and returns all that the client gets.
	ask func(w *world, method, params string) string
}

func lanes() (all []lane) {
	legacy := func(method, params string) string {
		return `{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":{` + params + `}}`
	}
	for _, prefix := range []string{"", "s0__"} {
		path, base, query, at := "/s0/mcp", "s0", url.Values{"server": {"s0"}}, "at /NAME/mcp"
		if prefix != "" {
			path, base, query, at = "/mcp", "", url.Values{"group": {"all"}}, "at /mcp"
		}
		all = append(all,
			lane{"2025 over HTTP " + at, prefix, false, func(w *world, method, params string) string {
				return w.visitAt(path).post(legacy(method, params)).body
			}},
			lane{"2026 " + at, prefix, false, func(w *world, method, params string) string {
				return w.do(ask{path: path, method: method, params: params}.request()).body
			}},
			lane{"HTTP+SSE " + at, prefix, false, func(w *world, method, params string) string {
				c := w.openSSE(base, "").open()
				c.accepted(legacy(method, params))
				time.Sleep(time.Second)
				got := c.messages()
				return got[len(got)-1]
			}},
			lane{"WebSocket " + at, prefix, false, func(w *world, method, params string) string {
				l := w.link(query)
				got := messages(l.open().say(legacy(method, params)))
				return strings.Join(got, "\n")
			}},
		)
	}
	return append(all,
		lane{"2025 with find_tools", "s0__", true, func(w *world, method, params string) string {
			return w.visitAt("/mcp").post(searched(method, params)).body
		}},
		lane{"2026 with find_tools", "s0__", true, func(w *world, method, params string) string {
			m, _ := wire.Parse([]byte(searched(method, params)))
			return w.do(ask{path: "/mcp", method: m.Method, params: string(m.Params[1 : len(m.Params)-1])}.request()).body
		}})
}

func (in lane) grouped(t *testing.T, n int, test func(t *testing.T, w *world)) {
	grouped(t, n, func(g *transport.Group) { g.Search = in.search }, test)
}

// searched returns the request by which a client of a group with search lists or calls.
func searched(method, params string) string {
	if method == wire.MethodToolsList {
		return `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"find_tools","arguments":{"query":"","limit":50}}}`
	}
	return `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"call_tool","arguments":{` + params + `}}}`
}

const (
	goodA = `{"name":"add","description":"Adds <b>.","inputSchema":{"type":"object","properties":{"x":{"type":"number"}}}}`
	goodB = `{"name":"bake","description":"Bakes.","inputSchema":{"type":"object"}}`
)

// hostile are lists of a server whose first list had goodA and goodB.
func hostile() map[string][]string {
	evil := strings.Replace(goodA, "Adds", "EVIL", 1)
	return map[string][]string{
		"changes a description": {evil, goodB},
		"changes a schema":      {strings.Replace(goodA, `"number"`, `"number","description":"EVIL"`, 1), goodB},
		"adds a tool":           {goodA, goodB, `{"name":"EVIL","inputSchema":{"type":"object"}}`},
		"swaps two names": {
			`{"name":"bake","description":"Adds <b>.","inputSchema":{"type":"object","properties":{"x":{"type":"number"}}}}`,
			`{"name":"add","description":"Bakes.","inputSchema":{"type":"object"}}`,
		},
		"hides text by Unicode": {strings.Replace(goodA, "Adds", "Adds\U000E0045\U000E0056\U000E0049\U000E004C\u200b", 1), goodB},
		"repeats a key":         {strings.Replace(goodA, `"description"`, `"description":"EVIL","description"`, 1), goodB},
		"repeats a tool":        {goodA, evil, goodB, evil},
		"renames a tool":        {strings.Replace(goodA, `"add"`, `"\u0430dd"`, 1), goodB},
		"lists what is no tool": {goodA, `{"description":"EVIL"}`, goodB},
	}
}

// A hostile server never shows a client what was not accepted, and gets no call of it.
func TestAHostileServerShowsOnlyWhatWasAccepted(t *testing.T) {
	for _, in := range lanes() {
		for _, record := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, record %t", in.name, record), func(t *testing.T) {
				in.grouped(t, 1, func(t *testing.T, w *world) {
					pin := storage.Pin{Server: "s0", Source: "npm s0"}
					w.change(func(s *sessions.Server) { s.Digest, s.Record, s.Pin = "hostile", record, &pin })
					var listed []string
					w.backend.tool("tools/list", func(r run) { r.end(`{"tools":[` + strings.Join(listed, ",") + `]}`) })
					shows := func(what string, accepted ...string) {
						t.Helper()
						got := in.ask(w, "tools/list", "")
						synctest.Wait()
						raw := wire.Lookup([]byte(got), "result", "tools")
						if in.search {
							raw = wire.Lookup([]byte(got), "result", "structuredContent", "tools")
						}
						var shown []string
						for tool := range wire.Elements(raw) {
							shown = append(shown, strings.Replace(string(tool), `"name":"`+in.prefix, `"name":"`, 1))
						}
						unaccepted := slices.ContainsFunc(shown, func(tool string) bool { return !slices.Contains(accepted, tool) })
						if unaccepted || len(shown) == 0 || strings.Contains(got, "EVIL") || strings.Contains(got, "\U000E0045") {
							t.Errorf("%s: the client got %s", what, got)
						}
					}
					listed = []string{goodA, goodB}
					shows("the first list", goodA, goodB)
					shows("the same list", goodA, goodB)
					for what, tools := range hostile() {
						listed = tools
						shows(what, goodA, goodB)
						commontest.OK(t, sessions.Forget(t.Context(), w.store, "tenant", "s0", "hostile"))
						shows(what+", without a record", goodA, goodB)
						listed = []string{goodA, goodB} // alternating
						shows("the first list again", goodA, goodB)
					}
					listed = []string{goodB}
					commontest.OK(t, sessions.Forget(t.Context(), w.store, "tenant", "s0", "hostile"))
					shows("a vanished tool", goodB)

					w.taken()
					for _, name := range []string{"EVIL", "\u0430dd", "Add"} {
						got := in.ask(w, "tools/call", `"name":"`+in.prefix+name+`","arguments":{}`)
						commontest.EqualIn(t, "a call of "+name, fmt.Sprint(int(wire.CodeInvalidParams)), string(wire.Lookup([]byte(got), "error", "code")))
					}
					commontest.EqualIn(t, "calls of the server", 0, len(slicesWith(w.taken(), "tools/call")))
					if got := in.ask(w, "tools/call", `"name":"`+in.prefix+`bake","arguments":{}`); wire.Lookup([]byte(got), "result") == nil {
						t.Errorf("a call of an accepted tool got %s", got)
					}
				})
			})
		}
	}
}

// A server may trim or fold names. So a name that looks like one that is refused is refused,
// too, wherever it is called.
func TestNamesLikeARefusedToolAreRefused(t *testing.T) {
	for _, in := range lanes() {
		t.Run(in.name, func(t *testing.T) {
			in.grouped(t, 1, func(t *testing.T, w *world) {
				w.change(func(s *sessions.Server) { s.Tools = storage.ToolFilter{Deny: []string{"tool1"}} })
				code := func(tool string) string {
					return string(wire.Lookup([]byte(in.ask(w, "tools/call", `"name":"`+tool+`"`)), "error", "code"))
				}
				commontest.EqualIn(t, "without a prefix", fmt.Sprint(int(wire.CodeInvalidParams)), code("tool1"))
				for _, tool := range []string{"tool1", " tool1", `tool1\t`, "TOOL1", `tool1\u0000`, `to\u200bol1`, "ｔool1"} {
					if strings.HasPrefix(in.name, "2026") && tool != "tool1" && tool != "TOOL1" && !in.search {
						continue // it does not fit into a header as it is
					}
					commontest.EqualIn(t, tool, fmt.Sprint(int(wire.CodeInvalidParams)), code(in.prefix+tool))
				}
				commontest.EqualIn(t, "calls of the server", 0, len(slicesWith(w.taken(), "tools/call")))
				commontest.EqualIn(t, "a name like a tool that is allowed", "", code(in.prefix+"Echo"))
			})
		})
	}
}

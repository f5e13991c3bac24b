package front_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/host"
)

// The list of tools says which headers repeat arguments. A first call gets the list before it
// goes to the server.
func TestModernParamHeadersHaveToRepeatArguments(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("tools/list", func(r run) {
			r.end(`{"tools":[{"name":"echo","inputSchema":{"type":"object","properties":{"city":{"type":"string","x-mcp-header":"City"}}}}]}`)
		})
		call := func(headers ...string) *answer {
			return w.do(ask{method: "tools/call", params: `"name":"echo","arguments":{"city":"Zürich"}`, headers: headers}.request())
		}
		for _, headers := range [][]string{nil, {"Mcp-Param-City", "Bern"}, {"Mcp-Param-City", "=?base64?QmVybg==?="}} {
			if got := call(headers...); got.status != 400 || !strings.Contains(got.body, "-32020") {
				t.Errorf("%v: got %d %s", headers, got.status, got.body)
			}
		}
		if got := w.backend.got; len(got) != 1 || !strings.Contains(got[0], "tools/list") {
			t.Errorf("the server got %q", got)
		}
		call("Mcp-Param-City", "=?base64?WsO8cmljaA==?=").result(t)
	})
}

func TestModernListFromTheRecordIsAsCompleteAsTheServers(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) { // the box sleeps
		w.opts.Sealer = newSealer(t)
		w.handshake(t, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"srv","version":"1"}}`)
		w.backend.tool("tools/list", func(r run) { r.end(`{"tools":[{"name":"a","unknown":1}]}`) })
		list := ask{server: "known", method: "tools/list", meta: `,"progressToken":1`}
		first := w.do(list.request()).result(t)
		synctest.Wait()
		asked := len(w.backend.got)
		if got := w.do(list.request()).result(t); string(got) != string(first) {
			t.Errorf("got %s, want %s", got, first)
		}
		for _, member := range []string{`"resultType":"complete"`, `"ttlMs":`, `"cacheScope":"private"`, `"name":"srv"`, `{"name":"a","unknown":1}`} {
			if !strings.Contains(string(first), member) {
				t.Errorf("%s lacks %s", first, member)
			}
		}
		if n := len(w.backend.got) - asked; n != 0 {
			t.Errorf("the server was asked %d times more", n)
		}
	})
}

// A call at an address of which the caller knows nothing is checked like one after a list,
// although the list of a group asks no server, has several pages, or was never asked for.
func TestToolsAreKnownBeforeTheirFirstCall(t *testing.T) {
	const tools = `{"name":"first","inputSchema":{"type":"object"},"execution":{"taskSupport":"forbidden"}}`
	const more = `{"name":"tool1","execution":{"taskSupport":"required"}},{"name":"city","inputSchema":{"type":"object","properties":{"city":{"type":"string","x-mcp-header":"City"}}}}`
	all := "elicitation,elicitation.form,elicitation.url,roots,sampling,sampling.context,sampling.tools"
	for name, first := range map[string]func(w *world){
		"cold":         func(*world) {},
		"after a list": func(w *world) { w.do(ask{path: "/mcp", method: "tools/list"}.request()).result(w.t) },
		"from the record": func(w *world) {
			w.keep("s1", "tools/list 2025-11-25 "+all+" anyone", `{"gen":1,"says":true,"list":{"tools":[`+tools+`,`+more+`]}}`)
		},
		"after a late list": func(w *world) {
			list := `{"gen":1,"says":true,"list":{"tools":[{"name":"tool1"}]}}`
			w.keep("s1", "tools/list 2025-11-25 "+all+" anyone", list)
			w.do(ask{path: "/mcp", method: "tools/call", params: `"name":"s1__tool1"`}.request()).result(w.t)
			w.keep("s1", "tools/list 2025-11-25 "+all+" anyone", `{"gen":1,"says":true,"list":{"tools":[`+tools+`,`+more+`]}}`)
			w.do(ask{path: "/mcp", method: "tools/list"}.request()).result(w.t)
		},
	} {
		for _, own := range []bool{false, true} {
			if own && name == "after a late list" {
				continue // the list of a group is none of the server's own address
			}
			t.Run(fmt.Sprint(name, ", own address: ", own), func(t *testing.T) {
				grouped(t, 2, nil, func(t *testing.T, w *world) {
					known := w.opts.Servers
					w.opts.Servers = func(name string) (host.Server, bool) {
						s, ok := known(name)
						if name == "s1" {
							s.Digest = "new"
						}
						return s, ok
					}
					w.backend.tool("tools/list", func(r run) {
						w.backend.mu.Lock()
						second := strings.Contains(w.backend.got[len(w.backend.got)-1], `"cursor":"2"`)
						w.backend.mu.Unlock()
						if second {
							r.end(`{"tools":[` + more + `]}`)
							return
						}
						r.end(`{"tools":[` + tools + `],"nextCursor":"2"}`)
					})
					w.after("tool1", 10*time.Second)
					w.opts.Limit = time.Minute
					if strings.Contains(name, "record") || strings.Contains(name, "late") {
						w.opts.Servers = known
					}
					first(w)
					w.taken()
					path, prefix := "/mcp", "s1__"
					if own {
						path, prefix = "/s1/mcp", ""
					}
					call := ask{path: path, method: "tools/call", params: `"name":"` + prefix + `tool1","arguments":{}`}
					if a := w.do(call.request()); a.status != 400 || !strings.Contains(a.body, needsTasks) {
						t.Errorf("a call without tasks: %d %s", a.status, a.body)
					}
					city := ask{path: path, method: "tools/call", params: `"name":"` + prefix + `city","arguments":{"city":"x"}`, headers: []string{"Mcp-Param-City", "y"}}
					if a := w.do(city.request()); a.status != 400 || !strings.Contains(a.body, "-32020") {
						t.Errorf("another city: %d %s", a.status, a.body)
					}
					for _, raw := range w.taken() {
						if strings.Contains(raw, "tools/call") {
							t.Errorf("the server got %s", raw)
						}
					}
					call.caps = taskCaps
					began := time.Now()
					w.becomes(call)
					if took := time.Since(began); took > time.Second {
						t.Errorf("the call became a task after %s", took)
					}
					time.Sleep(2 * time.Hour)
				})
			})
		}
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
			modern(t, func(t *testing.T, w *world) {
				w.opts.Limit = time.Minute
				w.backend.tool("tools/list", tt.list)
				for range 2 {
					if a := w.do(toolCall("echo").request()); !strings.Contains(a.body, `"content":[]`) {
						t.Errorf("got %d %s", a.status, a.body)
					}
				}
				if n := len(w.backend.got) - len(w.calls()); n != tt.lists || len(w.calls()) != 2 {
					t.Errorf("the server got %q", w.backend.got)
				}
			})
		})
	}
}

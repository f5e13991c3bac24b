package endpoints_test

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A call at the address of all servers counts once, as a call of its server. So a caller
// has as many calls there as at the server's own address. Lists and find_tools are free.
func TestACallAtTheAddressOfAllServersIsCountedOnce(t *testing.T) {
	const head = `{"jsonrpc":"2.0","id":1,"method":`
	named := func(tool string) string {
		return head + `"tools/call","params":{"name":"` + tool + `","arguments":{}}}`
	}
	wrapped := head + `"tools/call","params":{"name":"call_tool","arguments":{"name":"shop__echo","arguments":{}}}}`
	find := head + `"tools/call","params":{"name":"find_tools","arguments":{"query":"echo"}}}`
	stateless := func(call, name string) (string, []string) {
		meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}},`
		return strings.Replace(call, `"params":{`, `"params":{`+meta, 1), []string{"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", name}
	}
	for name, begin := range map[string]func(m *market) (call, list, search func() *httptest.ResponseRecorder){
		"2025-11-25": func(m *market) (call, list, search func() *httptest.ResponseRecorder) {
			opened := m.at("/mcp?tools=search", "POST", initialize)
			in := []string{"Mcp-Session-Id", opened.Header().Get("Mcp-Session-Id"), "Mcp-Protocol-Version", "2025-11-25"}
			m.at("/mcp?tools=search", "POST", initialized, in...)
			say := func(body string) func() *httptest.ResponseRecorder {
				return func() *httptest.ResponseRecorder { return m.at("/mcp?tools=search", "POST", body, in...) }
			}
			return say(wrapped), say(head + `"tools/list"}`), say(find)
		},
		"2026-07-28": func(m *market) (call, list, search func() *httptest.ResponseRecorder) {
			say := func(body, name string) func() *httptest.ResponseRecorder {
				body, headers := stateless(body, name)
				return func() *httptest.ResponseRecorder { return m.at("/mcp?tools=search", "POST", body, headers...) }
			}
			list = func() *httptest.ResponseRecorder {
				body, headers := modernRequest("tools/list", "")
				return m.at("/mcp", "POST", body, "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", strings.TrimPrefix(headers[1], "Mcp-Method: "))
			}
			return say(named("shop__echo"), "shop__echo"), list, say(find, "find_tools")
		},
	} {
		t.Run(name, func(t *testing.T) {
			inMarket(t, `{"principal": "60/m burst 4"}`, func(t *testing.T, m *market) {
				m.heat()
				call, list, search := begin(m)
				for range 10 {
					for free, say := range map[string]func() *httptest.ResponseRecorder{"a list": list, "a search": search} {
						if w := say(); w.Code != 200 || !strings.Contains(w.Body.String(), "echo") && !strings.Contains(w.Body.String(), "find_tools") {
							t.Fatalf("%s: %s: %d %s", name, free, w.Code, w.Body)
						}
					}
				}
				own := m.open("2025-11-25")
				for i := range 2 {
					if !m.sold(call()) || !m.sold(own.post(callEcho)) {
						t.Fatalf("%s: call %d is refused", name, i+1)
					}
				}
				w := call()
				if m.sold(w) || w.Code != 200 || !strings.Contains(w.Body.String(), `"isError":true`) || m.called.Load() != 4 {
					t.Errorf("%s: the fifth call: %d %s", name, w.Code, w.Body)
				}
				if m.sold(own.post(callEcho)) {
					t.Errorf("%s: the server's own address has calls left", name)
				}
				time.Sleep(time.Second)
				if !m.sold(call()) || m.sold(call()) {
					t.Errorf("%s: a second later one call passes", name)
				}
			})
		})
	}
}

// A repeat of a call with a key is no call: it counts for no limit and reaches no tool, also when
// the caller has no call left.
func TestARepeatIsNotCounted(t *testing.T) {
	inMarket(t, `{"principal": "60/m burst 2", "concurrent": 2}`, func(t *testing.T, m *market) {
		b := m.open("2025-11-25")
		keyed := func(key string) *httptest.ResponseRecorder {
			return b.post(strings.Replace(callEcho, `"arguments":{}`, `"arguments":{},"idempotencyKey":"`+key+`"`, 1))
		}
		for _, key := range []string{"a", "a", "a", "b", "a", "b"} {
			if !m.sold(keyed(key)) {
				t.Errorf("a call with key %s is refused", key)
			}
		}
		if m.sold(keyed("c")) {
			t.Error("a third call passes")
		}
		if !m.sold(keyed("a")) || m.called.Load() != 2 {
			t.Errorf("the repeats have called the tool: %d calls", m.called.Load())
		}
		time.Sleep(time.Second)
		if !m.sold(keyed("c")) || m.called.Load() != 3 { // what a limit has refused frees its key
			t.Errorf("a second later: %d calls", m.called.Load())
		}
	})
}

package endpoints_test

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A call at the address of all servers counts once, as a call of its server. So a caller
// has as many calls there as at the server's own address. The tool find_tools is free.
func TestACallAtTheAddressOfAllServersIsCountedOnce(t *testing.T) {
	inMarket(t, `{"principal": "60/m burst 4"}`, func(t *testing.T, m *market) {
		say := func(method, tool, arguments string) *httptest.ResponseRecorder {
			body, _ := modernRequest(method, tool)
			return m.at("/mcp?tools=search", "POST", strings.Replace(body, `"arguments":{}`, `"arguments":`+arguments, 1),
				"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", method, "Mcp-Name", tool)
		}
		for range 10 {
			if w := say("tools/call", "find_tools", `{"query":"echo"}`); !strings.Contains(w.Body.String(), "echo") {
				t.Fatalf("what is free is answered with %d %s", w.Code, w.Body)
			}
		}
		named := func() *httptest.ResponseRecorder { return say("tools/call", "shop__echo", "{}") }
		wrapped := func() *httptest.ResponseRecorder {
			return say("tools/call", "call_tool", `{"name":"shop__echo","arguments":{}}`)
		}
		own := m.open("2025-11-25")
		for i, call := range []func() *httptest.ResponseRecorder{named, wrapped} {
			if !m.sold(call()) || !m.sold(own.post(callEcho)) {
				t.Fatalf("call %d is refused", i+1)
			}
		}
		if m.sold(wrapped()) || m.sold(own.post(callEcho)) || m.called.Load() != 4 {
			t.Errorf("%d calls have passed", m.called.Load())
		}
	})
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

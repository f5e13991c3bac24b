package transport_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// the message of initialize alone decides the version
// of a session. The endpoint ignores a version header beside it, older, newer or of
// another era: a client that begins again may send the header of its last session.
func TestVersionOfASessionIsWhatItsInitializeSays(t *testing.T) {
	for name, tt := range map[string]struct{ header, message string }{
		"an older header":             {"2025-03-26", "2025-11-25"},
		"a newer header":              {"2025-11-25", "2025-03-26"},
		"a header of HTTP+SSE":        {"2024-11-05", "2025-11-25"},
		"a header of the modern era":  {"2026-07-28", "2025-06-18"},
		"a version that there is not": {"1999-01-01", "2025-06-18"},
		"the same":                    {"2025-11-25", "2025-11-25"},
		"no header":                   {"", "2025-11-25"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				w.backend.tool(wire.MethodInitialize, func(r run) {
					r.end(`{"protocolVersion":` + string(wire.Lookup([]byte(r.raw), "params", "protocolVersion")) + `,"capabilities":{}}`)
				})
				body := strings.Replace(initialize, "2025-11-25", tt.message, 1)
				a := w.do(request("POST", "/quiet/mcp", body, versionIs, tt.header))
				if got, _ := wire.String(wire.Lookup(a.result(t), "protocolVersion")); got != tt.message {
					t.Errorf("the session has version %q", got)
				}
				commontest.EqualIn(t, "the server got", body, string(w.backend.delivered[0].Raw))
				v := w.at("/quiet/mcp", a.header.Get(sessionIs))
				v.version = tt.message
				v.post(initialized)
				v.call("x").is(t, "a call", http.StatusOK, 0)
			})
		})
	}
}

// a first message that is refused opens no session and
// reaches no server. If it names neither a session nor the modern era, the error says that
// it needs a session, whatever version it names.
func TestFirstPOSTThatIsRefusedOpensNoSession(t *testing.T) {
	older := []string{versionIs, "2025-11-25"}
	bubble(t, func(t *testing.T, w *world) {
		for _, tt := range []struct {
			name, body string
			headers    []string
			code       wire.Code
			says       string
		}{
			{"a request", list, nil, wire.CodeServer, "send initialize"},
			{"a request of an older client", list, older, wire.CodeServer, "send initialize"},
			{"a request that names an older version", strings.Replace(list, `list"`, `list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2025-11-25"}}`, 1), older, wire.CodeServer, "send initialize"},
			{"a notification", initialized, nil, wire.CodeServer, "send initialize"},
			{"initialize in a batch", "[" + initialize + "]", nil, wire.CodeInvalidRequest, "batch"},
			{"initialize without a version", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`, nil, wire.CodeInvalidRequest, "params.protocolVersion"},
			{"initialize that breaks off", initialize[:40], nil, wire.CodeParse, "not valid JSON"},
		} {
			a := w.do(request("POST", "/quiet/mcp", tt.body, tt.headers...))
			a.is(t, tt.name, http.StatusBadRequest, tt.code)
			if !strings.Contains(a.body, tt.says) || a.header.Get(sessionIs) != "" {
				t.Errorf("%s: got %s", tt.name, a.body)
			}
		}
		w.nothingCame(t)
	})
}

// nothingCame asserts that there is no session, and that the server got nothing.
func (w *world) nothingCame(t *testing.T) {
	t.Helper()
	opened, err := w.store.List(t.Context(), "tenant", "", 10)
	if err != nil || len(opened) > 0 || w.calls["Create"] > 0 {
		t.Errorf("there are sessions: %v %v; calls of the store: %v", opened, err, w.calls)
	}
	commontest.EqualIn(t, "messages to the server", 0, len(w.backend.delivered))
}

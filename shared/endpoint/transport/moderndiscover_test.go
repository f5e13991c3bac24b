package transport_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// the endpoint answers server/discover without a handshake and without
// a session, and keeps nothing of the request. The client need not name itself.
func TestDiscoverNeedsNoSession(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.handshake(t, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"tasks":{"list":{}},"logging":{}},"serverInfo":{"name":"srv","version":"1.0.0"},"instructions":"Use with <care>"}`)
		r := ask{server: "known", method: "server/discover"}.request()
		reword(r, "io.modelcontextprotocol/clientInfo", "other")
		a := w.do(r)
		want := `{"resultType":"complete","supportedVersions":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"]` +
			`,"capabilities":{"tools":{"listChanged":true},"logging":{},"extensions":{"io.modelcontextprotocol/tasks":{}}},"instructions":"Use with <care>","ttlMs":3600000,"cacheScope":"private",` +
			`"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"srv","version":"1.0.0"}}}`
		commontest.Same(t, want, string(a.result(t)))
		commontest.EqualIn(t, "session", "", a.header.Get(sessionIs))
		w.nothingCame(t)
	})
}

// A server without a record is started, and told what the client said. Clients do not wait for a
// long start, and hear why there was none.
func TestModernDiscoverWithoutARecordStartsTheServer(t *testing.T) {
	const started = `"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"srv","version":"1"}}`
	for name, tt := range map[string]struct {
		start time.Duration
		end   string
		took  time.Duration
		says  []string
	}{
		"at once":    {4 * time.Second, started, 4 * time.Second, []string{`"capabilities":{"tools":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}`}},
		"later":      {time.Minute, started, 5 * time.Second, []string{`"ttlMs":0`, `"prompts":{`, `"supportedVersions":["2026-07-28","2025-11-25"`}},
		"not at all": {0, `"error":{"code":-32603,"message":"exit 1","data":{"phase":"mcp_init"}}`, 0, []string{`"phase":"mcp_init"`}},
	} {
		in(t, name, modern, func(t *testing.T, w *world) {
			w.backend.tool("initialize", func(r run) {
				time.Sleep(tt.start)
				r.append(`{"jsonrpc":"2.0","id":`+string(r.requests[0])+`,`+tt.end+`}`, true)
			})
			got := w.do(ask{method: "server/discover"}.request())
			got.is(t, name, 200, 0)
			if got.took < tt.took || got.took > tt.took+time.Second {
				t.Errorf("it took %s, want %s", got.took, tt.took)
			}
			for _, part := range tt.says {
				commontest.Contains(t, "the answer", part, got.body)
			}
			time.Sleep(time.Minute) // the start goes on
			commontest.EqualIn(t, "messages to the server", 1, len(w.backend.got))
			init := `"params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{},"sampling":{"context":{},"tools":{}},"elicitation":{"form":{},"url":{}}},"clientInfo":{"name":"t","version":"1"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}`
			commontest.Contains(t, "the server got", init, w.backend.got[0])
		})
	}
}

func TestListOfWhatAServerDoesNotHaveIsEmpty(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		for method, key := range map[string]string{"prompts/list": "prompts", "resources/list": "resources", "resources/templates/list": "resourceTemplates"} {
			w.backend.tool(method, func(r run) {
				r.append(`{"jsonrpc":"2.0","id":`+string(r.requests[0])+`,"error":{"code":-32601,"message":"Method not found"}}`, true)
			})
			got := w.do(ask{method: method}.request())
			commontest.EqualIn(t, method, "[]", string(wire.Lookup([]byte(got.body), "result", key)))
		}
	})
}

func TestModernParamHeadersHaveToRepeatArgumentsOnceTheListIsKnown(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("tools/list", func(r run) {
			r.end(`{"tools":[{"name":"echo","inputSchema":{"type":"object","properties":{"city":{"type":"string","x-mcp-header":"City"}}}}]}`)
		})
		call := func(headers ...string) *answer {
			return w.do(ask{method: "tools/call", params: `"name":"echo","arguments":{"city":"Zürich"}`, headers: headers}.request())
		}
		call("Mcp-Param-City", "Bern").result(t) // nothing is known
		w.do(ask{method: "tools/list"}.request()).result(t)
		asked := len(w.backend.got)
		for _, headers := range [][]string{nil, {"Mcp-Param-City", "Bern"}, {"Mcp-Param-City", "=?base64?QmVybg==?="}} {
			call(headers...).is(t, strings.Join(headers, " "), 400, wire.CodeHeaderMismatch)
		}
		commontest.EqualIn(t, "the server got", asked, len(w.backend.got))
		call("Mcp-Param-City", "=?base64?WsO8cmljaA==?=").result(t)
	})
}

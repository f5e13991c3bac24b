package transport_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func TestModernDiscoverWithoutARecordStartsTheServer(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("initialize", func(r run) {
			time.Sleep(4 * time.Second)
			r.end(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"srv","version":"1"}}`)
		})
		got := w.do(ask{method: "server/discover"}.request())
		commontest.Contains(t, "", `"capabilities":{"tools":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}`, got.body)
		init := `"params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{},"sampling":{"context":{},"tools":{}},"elicitation":{"form":{},"url":{}}},"clientInfo":{"name":"t","version":"1"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}`
		commontest.Contains(t, "the server got", init, w.backend.got[0])
	})
}

func TestModernDiscoverDoesNotWaitForALongStart(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("initialize", func(r run) {
			time.Sleep(time.Minute)
			r.end(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"srv","version":"1"}}`)
		})
		begun := time.Now()
		got := w.do(ask{method: "server/discover"}.request())
		if took := time.Since(begun); took < 5*time.Second || took > 6*time.Second {
			t.Errorf("it took %s", took)
		}
		result := wire.Lookup([]byte(got.body), "result")
		if !strings.Contains(got.header.Get("Content-Type"), "json") || string(wire.Lookup(result, "ttlMs")) != "0" || wire.Lookup(result, "capabilities", "prompts") == nil ||
			!strings.Contains(string(wire.Lookup(result, "supportedVersions")), `"2026-07-28","2025-11-25"`) {
			t.Errorf("got %s", got.body)
		}
		time.Sleep(time.Minute) // of the bubble: the start goes on
		commontest.EqualIn(t, "messages to the server", 1, len(w.backend.got))
	})
}

func TestModernDiscoverOfAServerThatDoesNotStartSaysWhy(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("initialize", func(r run) {
			r.append(`{"jsonrpc":"2.0","id":`+string(r.requests[0])+`,"error":{"code":-32603,"message":"exit 1","data":{"phase":"mcp_init"}}}`, true)
		})
		got := w.do(ask{method: "server/discover"}.request())
		if got.status != 200 || !strings.Contains(got.body, `"phase":"mcp_init"`) {
			t.Errorf("got %d %s", got.status, got.body)
		}
	})
}

func TestListOfWhatAServerDoesNotHaveIsEmpty(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		for method, key := range map[string]string{"prompts/list": "prompts", "resources/list": "resources", "resources/templates/list": "resourceTemplates"} {
			w.backend.tool(method, func(r run) {
				r.append(`{"jsonrpc":"2.0","id":`+string(r.requests[0])+`,"error":{"code":-32601,"message":"Method not found"}}`, true)
			})
			got := w.do(ask{method: method}.request())
			if list := wire.Lookup([]byte(got.body), "result", key); string(list) != "[]" {
				t.Errorf("%s: %s", method, got.body)
			}
		}
	})
}

func TestModernResultsThatMayBeKeptSayForHowLong(t *testing.T) {
	tests := map[string]string{
		"tools/list": "300000", "prompts/list": "300000", "resources/list": "300000", "resources/templates/list": "300000", "resources/read": "0",
		"prompts/get": "", "completion/complete": "",
	}
	for method, ttl := range tests {
		t.Run(method, func(t *testing.T) {
			modern(t, func(t *testing.T, w *world) {
				w.handshake(t, `{"capabilities":{},"serverInfo":{"name":"srv","version":"1"}}`)
				result := w.do(ask{server: "known", method: method}.request()).result(t)
				want := ""
				if ttl != "" {
					want = `"private"`
				}
				if string(wire.Lookup(result, "ttlMs")) != ttl || string(wire.Lookup(result, "cacheScope")) != want {
					t.Errorf("%s: %s", method, result)
				}
				if got := string(wire.Lookup(result, "_meta", "io.modelcontextprotocol/serverInfo", "name")); got != `"srv"` {
					t.Errorf("%s: %s", method, result)
				}
			})
		})
	}
}

func TestModernStoreTroubleIs503(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.down("")
		for _, a := range []ask{toolCall("echo"), {method: "server/discover"}} {
			got := w.do(a.request())
			if code, _ := got.rpcError(t); got.status != 503 || code != -32000 {
				t.Errorf("got %d %s", got.status, got.body)
			}
		}
	})
}

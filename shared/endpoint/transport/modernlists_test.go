package transport_test

import (
	"strings"
	"testing"
	"testing/synctest"
)

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
			if got := call(headers...); got.status != 400 || !strings.Contains(got.body, "-32020") {
				t.Errorf("%v: got %d %s", headers, got.status, got.body)
			}
		}
		if n := len(w.backend.got) - asked; n != 0 {
			t.Errorf("the server got %d of them", n)
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

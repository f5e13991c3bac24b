package transport_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// FuzzRequest sends random requests. The endpoint must answer each one: with a JSON-RPC
// error if it is wrong, and never with an error of the endpoint itself.
func FuzzRequest(f *testing.F) {
	const accept, mime = "application/json, text/event-stream", "application/json"
	f.Add("POST", "/quiet/mcp", "localhost", "", accept, mime, "", "", "", initialize)
	f.Add("POST", "/pushy/mcp/", "127.0.0.1:1", "http://[::1]:9", "*/*;q=0.1", mime+";charset=utf-8", "2025-03-26", "abc", "", "["+callOf("x")+"]")
	f.Add("POST", "/quiet/mcp", "localhost", "null", accept, mime, "2026-07-28", "", "", `{"jsonrpc":"2.0","id":1,"method":"server/discover"}`)
	f.Add("GET", "/quiet/mcp", "[::1]", "https://localhost", "text/*", "", "2025-11-25", "abc", "0.abc/def", "")
	f.Add("DELETE", "/quiet/mcp", "localhost", "", "", "", "2025-11-25", "a/b", "", "")
	f.Add("HEAD", "/", "", "", ",;,", ";", "x", "\x00", "1", "{")
	f.Fuzz(func(t *testing.T, method, path, host, origin, accept, mime, version, session, last, body string) {
		w := newWorld(t)
		w.limits.Hold = time.Millisecond
		r := request(http.MethodPost, "/", body)
		r.Method, r.URL.Path, r.Host = method, path, host
		for name, value := range map[string]string{
			"Origin": origin, "Accept": accept, "Content-Type": mime, "MCP-Protocol-Version": version,
			"Mcp-Session-Id": session, "Last-Event-ID": last,
		} {
			if r.Header.Del(name); value != "" {
				r.Header.Set(name, value)
			}
		}
		a := w.do(r)
		switch {
		case a.status >= 500 || a.status == 0:
			t.Errorf("answered with %d %s", a.status, a.body)
		case a.status >= 400 && method != http.MethodHead:
			if code, _ := a.rpcError(t); code == 0 || a.header.Get("Content-Type") != wire.MediaJSON {
				t.Errorf("answered with %d %s", a.status, a.body)
			}
		case a.status == 200 && !json.Valid([]byte(a.body)) && !strings.HasPrefix(a.body, "id: "):
			t.Errorf("answered with %s", a.body)
		}
		commontest.EqualIn(t, "logged", 1, strings.Count(w.logged.String(), "\n"))
	})
}

package transport_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
)

const ofABrowser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"

func named(w *world) *world {
	w.opts.Names = func() []string { return []string{"quiet", "pushy", "known"} }
	return w
}

func TestABrowserGetsAPage(t *testing.T) {
	for _, c := range []struct {
		path, key string
		status    int
		says      string
	}{
		{"/", "", 200, `<li><a href="/quiet/mcp">quiet</a></li>`},
		{"/", "Bearer nobody", 200, `<code>http://localhost/NAME/mcp</code>`},
		{"/quiet/mcp", "", 200, `claude mcp add --transport http quiet http://localhost/quiet/mcp`},
		{"/quiet/sse", "", 200, `<pre>http://localhost/quiet/sse</pre>`},
		{"/quiet/mcp", "Bearer nobody", 401, `dormouse keys create NAME`},
		{"/weather/mcp", "", 503, `WEATHER_KEY is not set (servers.json:14:32)`},
		{"/quit/mcp", "", 404, `there is no server quit (did you mean quiet?); there are quiet, pushy, known`},
		{"/%3Cscript%3E/mcp", "", 404, `there is no server &lt;script&gt;; there are`},
		{"/elsewhere", "", 404, `there is nothing at this path`},
	} {
		w := named(newWorld(t))
		a := w.do(request("GET", c.path, "", "Accept", ofABrowser, "Authorization", c.key, "Sec-Fetch-Dest", "document", "Sec-Fetch-Site", "none"))
		if a.status != c.status || !strings.Contains(a.body, c.says) || strings.Contains(a.body, "<script") {
			t.Errorf("%s %s: got %d\n%s\nwant %d and %s", c.path, c.key, a.status, a.body, c.status, c.says)
		}
		if c.key != "" && strings.Contains(a.body, "pushy") {
			t.Errorf("%s: who has no key sees the names:\n%s", c.path, a.body)
		}
		policy := a.header.Get("Content-Security-Policy")
		if a.header.Get("Content-Type") != "text/html; charset=utf-8" || !strings.Contains(policy, "default-src 'none'") || !strings.Contains(policy, "frame-ancestors 'none'") || a.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: headers %v", c.path, a.header)
		}
		if list, err := w.store.List(t.Context(), "", "", 10); err != nil || len(list) != 0 {
			t.Errorf("%s: the page opened %d sessions, %v", c.path, len(list), err)
		}
	}
}

func TestClientsGetNoPage(t *testing.T) {
	for name, headers := range map[string][]string{
		"a client of HTTP+SSE":         {"Accept", "text/html, text/event-stream"},
		"curl":                         {"Accept", "*/*"},
		"a request of a session":       {"Accept", "text/html", "Mcp-Session-Id", "x"},
		"a request that names the era": {"Accept", "text/html", "MCP-Protocol-Version", "2025-11-25"},
	} {
		a := named(newWorld(t)).do(request("GET", "/absent/mcp", "", headers...))
		if code, _ := a.rpcError(t); a.status != http.StatusNotFound || code == 0 {
			t.Errorf("%s: got %d %s", name, a.status, a.body)
		}
	}
	if a := named(newWorld(t)).do(request("POST", "/absent/mcp", initialize, "Accept", ofABrowser)); strings.Contains(a.body, "<html") {
		t.Errorf("a POST got a page:\n%s", a.body)
	}
}

func TestUnknownServerIsAnsweredWithTheNamesThatTheCallerMayUse(t *testing.T) {
	inGuarded(t, func(t *testing.T, g *guarded) {
		named(g.world)
		for _, c := range []struct {
			who    string
			status int
			says   string
		}{
			{"owner's other", 404, "there is no server puhsy (did you mean pushy?); there are quiet, pushy, known"},
			{"elsewhere", 403, "this API key is not for puhsy; it is for quiet"},
			{"unknown", 401, "this API key is unknown, revoked or expired"},
		} {
			a := g.as(c.who, request("POST", "/puhsy/mcp", initialize))
			if _, message := a.rpcError(t); a.status != c.status || !strings.HasPrefix(message, c.says) {
				t.Errorf("%s: got %d %s, want %d %s", c.who, a.status, message, c.status, c.says)
			}
			r := request("GET", "/?server=puhsy", "")
			r.Header.Set("Authorization", g.keys[c.who])
			status, _, body := transport.NewSocket(transport.SocketOptions{Options: g.opts}).Connect(t.Context(), "c", r)
			if status != c.status || !strings.Contains(string(body), c.says) {
				t.Errorf("%s over a WebSocket: got %d %s, want %d %s", c.who, status, body, c.status, c.says)
			}
		}
	})
}

package transport_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

const ofABrowser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"

func named(w *world) *world {
	w.opts.Names = func() []string { return []string{"quiet", "pushy", "known"} }
	return w
}

func browse(path, key string) *http.Request {
	return request("GET", path, "", "Accept", ofABrowser, "Authorization", key, "Sec-Fetch-Dest", "document", "Sec-Fetch-Site", "none")
}

func TestABrowserGetsAPage(t *testing.T) {
	for _, c := range []struct {
		path, key string
		status    int
		says      []string
		not       string
		proto     string // that a proxy in front says
	}{
		{"/", "", 200, []string{`<li><a href="/quiet/mcp">quiet</a></li>`, `<a href="/console">console</a>`}, "did you mean", ""},
		{"/", "Bearer nobody", 200, []string{`<code>http://localhost/NAME/mcp</code>`}, "quiet", ""},
		{"/quiet/mcp", "", 200, []string{
			"<h1>quiet</h1>", `claude mcp add --transport http quiet http://localhost/quiet/mcp`, `href="cursor://`, `href="vscode:mcp/install?`, `href="lmstudio://`,
			"<summary>Windsurf</summary>", "~/.codex/config.toml", `<a href="/console">`,
		}, "API key", ""},
		{"/mcp", "", 200, []string{"<h1>All servers</h1>", `<a href="/pushy/mcp">pushy</a>`, "claude mcp add --transport http dormouse http://localhost/mcp"}, "API key", ""},
		{"/quiet/mcp", "Bearer nobody", 401, []string{`dormouse keys create NAME`, "Its tools are shown to those who may use it", `href="cursor://`}, "pushy", ""},
		{"/weather/mcp", "", 503, []string{`WEATHER_KEY is not set (servers.json:14:32)`}, "claude mcp", ""},
		{"/quit/mcp", "", 404, []string{`there is no server quit; there are quiet, pushy, known`}, "claude mcp", ""},
		{"/%3Cscript%3E/mcp", "", 404, []string{`there is no server &lt;script&gt;; there are`}, "claude mcp", ""},
		{"/quiet/mcp", "", 200, []string{"https://localhost/quiet/mcp"}, "http://localhost", "https"},
	} {
		t.Run(c.path+" "+c.key+" "+c.proto, func(t *testing.T) {
			w := named(newWorld(t))
			w.opts.Groups = func(name string) (transport.Group, bool) { return transport.Group{}, name == "" }
			r := browse(c.path, c.key)
			r.Header.Set("X-Forwarded-Proto", c.proto)
			a := w.do(r)
			if a.status != c.status || strings.Contains(a.body, "<script") || strings.Contains(a.body, c.not) {
				t.Errorf("got %d\n%s\nwant %d and not %s", a.status, a.body, c.status, c.not)
			}
			for _, says := range c.says {
				commontest.Contains(t, "the page", says, a.body)
			}
			policy := a.header.Get("Content-Security-Policy")
			if a.header.Get("Content-Type") != "text/html; charset=utf-8" || !strings.Contains(policy, "default-src 'none'") || !strings.Contains(policy, "frame-ancestors 'none'") || a.header.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("headers %v", a.header)
			}
			if list, err := w.store.List(t.Context(), "", "", 10); err != nil || len(list) != 0 {
				t.Errorf("the page opened %d sessions, %v", len(list), err)
			}
		})
	}
}

// A server says who it is, and its tools are those that the caller may see.
func TestPageShowsWhatTheServerSaysOfItself(t *testing.T) {
	w := named(newWorld(t))
	w.opts.Servers = func(name string) (sessions.Server, bool) {
		s := sessions.Server{Name: name, Digest: name, Record: true, Anonymous: true}
		s.Tools.Deny = []string{"alerts"}
		return s, true
	}
	w.keep("known", wire.V20251125, `{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"w","title":"Weather & co","version":"4.2"},"instructions":"Ask it before you go out."}`)
	w.keep("known", "tools/list 2025-11-25  anyone", `{"gen":1,"list":{"tools":[{"name":"forecast","description":"The weather <b> of the coming days"},{"name":"alerts"}]}}`)
	a := w.do(browse("/known/mcp", ""))
	for _, says := range []string{"<h1>Weather &amp; co</h1>", "known 4.2", "Ask it before you go out.", "<code>forecast</code>\n<p>The weather &lt;b&gt; of the coming days</p>"} {
		commontest.Contains(t, "the page", says, a.body)
	}
	if strings.Contains(a.body, "alerts") {
		t.Errorf("the page shows what its reader may not use:\n%s", a.body)
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
			{"owner's other", 404, "there is no server puhsy; there are quiet, pushy, known"},
			{"elsewhere", 403, "this API key is not for puhsy; it is for quiet"},
			{"unknown", 401, "this API key is unknown, revoked or expired"},
		} {
			a := g.as(c.who, request("POST", "/puhsy/mcp", initialize))
			if _, message := a.rpcError(t); a.status != c.status || !strings.HasPrefix(message, c.says) {
				t.Errorf("%s: got %d %s, want %d %s", c.who, a.status, message, c.status, c.says)
			}
			r := request("GET", "/?server=puhsy", "")
			r.Header.Set("Authorization", g.keys[c.who])
			status, _, body := g.function().Connect(t.Context(), "c", r)
			if status != c.status || !strings.Contains(string(body), c.says) {
				t.Errorf("%s over a WebSocket: got %d %s, want %d %s", c.who, status, body, c.status, c.says)
			}
		}
	})
}

// A page of another site can make its reader's browser send GETs without an Origin. None
// of them may open a stream, or a session.
func TestStreamIsOpenedForNoPageOfElsewhere(t *testing.T) {
	for name, tt := range map[string]struct {
		headers []string
		status  int
	}{
		"a client":                  {nil, 200},
		"fetch of a page that may":  {[]string{"Origin", "http://127.0.0.1", "Sec-Fetch-Site", "same-site", "Sec-Fetch-Dest", "empty"}, 200},
		"an image elsewhere":        {[]string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "image"}, 403},
		"no-cors fetch elsewhere":   {[]string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "empty"}, 403},
		"a frame of an own page":    {[]string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Dest", "iframe"}, 403},
		"a program that wants JSON": {[]string{"Accept", "application/json"}, 406},
	} {
		for _, path := range []string{"/pushy/sse", "/pushy/mcp"} {
			bubble(t, func(t *testing.T, w *world) {
				a := w.begin(request("GET", path, "", append([]string{"Accept", wire.MediaSSE}, tt.headers...)...)).leave()
				opened, err := w.store.List(t.Context(), "", "", 10)
				commontest.OK(t, err)
				if a.status != tt.status || len(opened) > 0 != (tt.status == 200) {
					t.Errorf("%s, %s: got %d %s and %d sessions", name, path, a.status, a.body, len(opened))
				}
			})
		}
	}
}

// unread is a body that fails the test if it is read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

func TestBodyIsReadOfCallersThatMayCallOnly(t *testing.T) {
	for name, change := range map[string]func(*world, *http.Request){
		"another Host":  func(_ *world, r *http.Request) { r.Host = "evil.example" },
		"another page":  func(_ *world, r *http.Request) { r.Header.Set("Origin", "https://evil.example") },
		"no key":        func(_ *world, r *http.Request) { r.Header.Set("Authorization", "Bearer nobody") },
		"no server":     func(_ *world, r *http.Request) { r.URL.Path = "/absent/mcp" },
		"not for JSON":  func(_ *world, r *http.Request) { r.Header.Set("Content-Type", "text/plain") },
		"too long":      func(_ *world, r *http.Request) { r.ContentLength = 4<<20 + 1 },
		"a small limit": func(w *world, r *http.Request) { w.opts.MaxBody, r.ContentLength = 10, 11 },
	} {
		w := newWorld(t)
		r := request("POST", "/quiet/mcp", "")
		r.Header.Set("Content-Type", "application/json")
		r.Body = io.NopCloser(unread{t})
		change(w, r)
		if a := w.do(r); a.status < 400 {
			t.Errorf("%s: got %d", name, a.status)
		}
	}
}

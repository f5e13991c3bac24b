package transport_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// extended runs a test with three servers, which declare extensions: s0 pages of apps, s1
// skills, s2 skills and an extension of a vendor.
func extended(t *testing.T, change func(*transport.Group), test func(t *testing.T, w *world)) {
	grouped(t, 3, change, func(t *testing.T, w *world) {
		for server, extensions := range map[string]string{
			"s0": `"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}`,
			"s1": `"io.modelcontextprotocol/skills":{}`,
			"s2": `"io.modelcontextprotocol/skills":{"directoryRead":true},"com.example/hello":{"x":1}`,
		} {
			w.keep(server, wire.V20251125, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"resources":{},"extensions":{`+extensions+`}},"serverInfo":{"name":"x","version":"1"}}`)
		}
		test(t, w)
	})
}

// A client of a group and its servers learn of the extensions that the other end declares.
func TestGroupPassesExtensionsOn(t *testing.T) {
	extended(t, nil, func(t *testing.T, w *world) {
		want := `"io.modelcontextprotocol/skills":{"directoryRead":true},"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}`
		a := w.do(request("POST", "/mcp", strings.Replace(initialize, `"capabilities":{}`, `"capabilities":{"extensions":{"com.example/hello":{"y":2}}}`, 1)))
		commontest.EqualIn(t, "initialize", `{"com.example/hello":{"x":1},`+want+`}`, string(wire.Lookup([]byte(a.body), "result", "capabilities", "extensions")))
		d := w.do(ask{path: "/mcp", method: "server/discover"}.request())
		if got := string(wire.Lookup([]byte(d.body), "result", "capabilities", "extensions")); !strings.Contains(got, want) || !strings.Contains(got, `"com.example/hello":{"x":1}`) {
			t.Errorf("discover: %s", got)
		}
		c := w.at("/mcp", a.header.Get(sessionIs))
		var init string
		w.backend.tool("tool2", func(r run) {
			if s, _, err := r.w.store.Load(r.ctx, r.session, ""); err == nil {
				init = string(s.Init)
			}
			r.end(`{"content":[]}`)
		})
		c.call("s2__tool2")
		commontest.Contains(t, "the server was told", `"extensions":{"com.example/hello":{"y":2}}`, init)
	})
}

// Servers without a box have no record: those in Go, and those that others host. They say themselves
// what they can, and one that says nothing holds the others up only for a moment.
func TestGroupPassesOnWhatServersWithoutBoxesDeclare(t *testing.T) {
	grouped(t, 1, nil, func(t *testing.T, w *world) {
		w.unlisted("far", "mute")
		w.change(func(s *sessions.Server) { s.InPlace = s.Name != "s0"; s.Record = !s.InPlace })
		w.backend.tool("initialize", func(r run) {
			s, _, err := r.w.store.Load(r.ctx, r.session, "")
			commontest.Check(t, err)
			if s.Server == "far" {
				r.end(`{"protocolVersion":"2025-11-25","capabilities":{"extensions":{"com.example/far":{"x":1}}},"serverInfo":{"name":"x","version":"1"},"instructions":"from afar"}`)
			}
		})
		w.backend.tool("com.example/far/do", func(r run) { r.end(`{"done":true}`) })
		begun := time.Now()
		a := w.do(request("POST", "/mcp", initialize))
		commontest.EqualIn(t, "initialize, with a server that says nothing, took", 5*time.Second, time.Since(begun))
		w.opts.Names = func() []string { return []string{"s0", "far"} }
		for what, body := range map[string]string{"initialize": a.body, "server/discover": w.do(ask{path: "/mcp", method: "server/discover"}.request()).body} {
			commontest.Contains(t, what, `"com.example/far":{"x":1}`, body)
			commontest.Contains(t, what, "from afar", body)
		}
		commontest.Contains(t, "a method of the extension", `"done":true`, w.at("/mcp", a.header.Get(sessionIs)).post(`{"jsonrpc":"2.0","id":1,"method":"com.example/far/do"}`).body)
		commontest.Contains(t, "one in 2026-07-28", `"done":true`, w.do(ask{path: "/mcp", method: "com.example/far/do"}.request()).body)
	})
}

// A client must not keep what it discovers while a server is not known yet: its extensions are missing.
func TestDiscoveryOfAGroupIsKeptOnceItIsWhole(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		ttl := func() string {
			d := w.do(ask{path: "/mcp", method: "server/discover"}.request())
			return string(wire.Lookup([]byte(d.body), "result", "ttlMs"))
		}
		commontest.EqualIn(t, "kept for", "3600000", ttl())
		w.unlisted("s1")
		commontest.EqualIn(t, "kept while a server is unknown for", "0", ttl())
	})
}

// A method of an extension goes to the server that it names, or to the only one that has the extension.
func TestMethodsOfExtensionsAtAGroup(t *testing.T) {
	extended(t, nil, func(t *testing.T, w *world) {
		w.backend.tool("s1__x", func(r run) { r.end(`{"content":[]}`) })
		c := w.openGroup()
		for _, tt := range []struct{ method, params, got string }{
			{"com.example/hello", `"name":"s1__x"`, `{"name":"s1__x"`},
			{"skills/get", `"uri":"skill://s1/a/SKILL.md"`, `{"uri":"skill://a/SKILL.md"`},
		} {
			c.post(`{"jsonrpc":"2.0","id":1,"method":"`+tt.method+`","params":{`+tt.params+`}}`).is(t, tt.method, 200, 0)
			w.do(ask{path: "/mcp", method: tt.method, params: tt.params}.request()).result(t)
			for _, got := range w.taken() {
				commontest.Contains(t, tt.method, tt.got, got)
			}
		}
		w.awake("s0", "s1", "s2")
		r := ask{path: "/mcp", method: "notifications/com.example/x"}.request()
		setBody(r, strings.Replace(bodyOf(r), `"id":7,`, ``, 1))
		w.do(r).is(t, "a notification", 202, 0)
		commontest.EqualIn(t, "servers that it reaches, of those in use", 2, len(w.taken()))
		c.post(`{"jsonrpc":"2.0","id":1,"method":"skills/get","params":{"uri":"skill://a/SKILL.md"}}`).is(t, "skills of two servers", 200, wire.CodeInvalidParams)
		c.post(`{"jsonrpc":"2.0","id":1,"method":"skills/x"}`).is(t, "an unknown method of two servers", 200, wire.CodeMethodNotFound)
		w.do(ask{path: "/mcp", method: "logging/setLevel", params: `"level":"info"`}.request()).is(t, "a method of the legacy era", 404, 0)
		w.silent()
	})
}

// The skills of all servers are one list, page by page, under the URIs that skills/get and
// resources/read take.
func TestSkillsOfAGroup(t *testing.T) {
	extended(t, nil, func(t *testing.T, w *world) {
		w.backend.tool("skills/list", func(r run) {
			s, _, err := r.w.store.Load(r.ctx, r.session, "")
			commontest.Check(t, err)
			switch {
			case s.Server == "s1":
				r.fail(`{"code":-32603,"message":"it has exited"}`)
			case strings.Contains(r.raw, `"cursor":"2"`):
				r.end(`{"skills":[{"uri":"skill://b/SKILL.md","frontmatter":{"name":"b"},"resources":"dynamic"}]}`)
			default:
				r.end(`{"skills":[{"uri":"skill://a/SKILL.md","frontmatter":{"name":"a"},"resources":[{"uri":"skill://a/SKILL.md","size":1}]}],"nextCursor":"2"}`)
			}
		})
		skills := `"skills":[{"uri":"skill://s2/a/SKILL.md","frontmatter":{"name":"a"},"resources":[{"uri":"skill://s2/a/SKILL.md","size":1}]},{"uri":"skill://s2/b/SKILL.md","frontmatter":{"name":"b"},"resources":"dynamic"}]`
		unavailable := `"_meta":{"dormouse/unavailable":{"s1":"it has exited"}`
		a := w.openGroup().post(`{"jsonrpc":"2.0","id":1,"method":"skills/list"}`)
		commontest.Equal(t, `{"jsonrpc":"2.0","id":1,"result":{`+skills+`,`+unavailable+`}}}`, a.body)
		modern := w.do(ask{path: "/mcp", method: "skills/list"}.request())
		if modern.status != 200 || !strings.Contains(modern.body, skills+`,"ttlMs":0,"cacheScope":"private"`) || !strings.Contains(modern.body, `"dormouse/unavailable":{"s1":`) {
			t.Errorf("in 2026-07-28: %d %s", modern.status, modern.body)
		}
	})
}

// A host gets the page of an app by the URI that the tool names, and the page calls the tools of
// its server by the server's own names.
func TestAppsWorkAtAGroup(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		w.keepList("s1", "tools/list", `{"tools":[{"name":"echo"},{"name":"tool1","_meta":{"ui":{"resourceUri":"ui://w/a.html"}}}]}`)
		w.keep("s1", wire.V20251125, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"resources":{}}}`)
		w.backend.tool("resources/read", func(r run) { r.end(`{"contents":[{"uri":"ui://w/a.html","text":"<p>hello"}]}`) })
		w.backend.tool("tool1", func(r run) { r.end(`{"content":[],"_meta":{"ui":{"resourceUri":"ui://w/a.html"}}}`) })
		c := w.openGroup()
		says := func(method, params, want string) {
			t.Helper()
			legacy := c.post(`{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + params + `}}`)
			commontest.Contains(t, method, want, legacy.body)
			commontest.Contains(t, method+" in 2026-07-28", want, w.do(ask{path: "/mcp", method: method, params: params}.request()).body)
		}
		const uri = "ui://s1/w/a.html"
		says("tools/list", "", `"_meta":{"ui":{"resourceUri":"`+uri+`"}`)
		says("resources/read", `"uri":"`+uri+`"`, `"contents":[{"uri":"`+uri+`","text":"<p>hello"}]`)
		for _, name := range []string{"s1__tool1", "tool1"} {
			says("tools/call", `"name":"`+name+`","arguments":{}`, `"ui":{"resourceUri":"`+uri+`"}`)
		}
		says("tools/call", `"name":"echo"`, `there is no tool echo here`) // two servers have it
	})
}

package transport_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// A server may trim or fold names. So a name that looks like one that is refused is refused,
// too, wherever it is called.
func TestNamesLikeARefusedToolAreRefused(t *testing.T) {
	for name, group := range map[string]bool{"own": false, "group": true} {
		t.Run(name, func(t *testing.T) {
			grouped(t, 2, nil, func(t *testing.T, w *world) {
				all := w.opts.Servers
				w.opts.Servers = func(name string) (sessions.Server, bool) {
					s, ok := all(name)
					s.Tools = storage.ToolFilter{Deny: []string{"tool1"}}
					return s, ok
				}
				path, prefix, query := "/s1/mcp", "", url.Values{"server": {"s1"}}
				if group {
					path, prefix, query = "/mcp", "s1__", url.Values{"group": {"all"}}
				}
				c := w.visitAt(path)
				l := w.link(query)
				l.open()
				for _, tool := range []string{"tool1", " tool1", `tool1\t`, "TOOL1", `tool1\u0000`, `to\u200bol1`, "ｔool1"} {
					if a := c.call(prefix + tool); !strings.Contains(a.body, "-32602") {
						t.Errorf("%q: %d %s", tool, a.status, a.body)
					}
					if got := strings.Join(l.say(callOf(prefix+tool)), ""); !strings.Contains(got, "-32602") {
						t.Errorf("%q over a WebSocket: %s", tool, got)
					}
				}
				for _, tool := range []string{"tool1", "TOOL1"} { // others do not fit into a header as they are
					a := ask{path: path, method: "tools/call", params: `"name":"` + prefix + tool + `"`}
					if a := w.do(a.request()); !strings.Contains(a.body, "-32602") {
						t.Errorf("%q of 2026-07-28: %d %s", tool, a.status, a.body)
					}
				}
				for _, raw := range w.taken() {
					if strings.Contains(raw, "tools/call") {
						t.Errorf("the server got %s", raw)
					}
				}
				if a := c.call(prefix + "Echo"); strings.Contains(a.body, "-32602") {
					t.Errorf("a name like a tool that is allowed: %s", a.body)
				}
			})
		})
	}
}

package transport_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// A call at a group is checked like one after a list at the server's own address, although the
// list of a group asks no server, has several pages, or was never asked for.
func TestToolsAreKnownBeforeTheirFirstCall(t *testing.T) {
	const tools = `{"name":"first","inputSchema":{"type":"object"},"execution":{"taskSupport":"forbidden"}}`
	const more = `{"name":"tool1","execution":{"taskSupport":"required"}},{"name":"city","inputSchema":{"type":"object","properties":{"city":{"type":"string","x-mcp-header":"City"}}}}`
	for name, first := range map[string]func(w *world){
		"cold":         func(*world) {},
		"after a list": func(w *world) { w.do(ask{path: "/mcp", method: "tools/list"}.request()).result(w.t) },
		"from the record": func(w *world) {
			w.keepList("s1", "tools/list", `{"tools":[`+tools+`,`+more+`]}`)
		},
		"after a late list": func(w *world) {
			w.keepList("s1", "tools/list", `{"tools":[{"name":"tool1"}]}`)
			w.do(ask{path: "/mcp", method: "tools/call", params: `"name":"s1__tool1"`}.request()).result(w.t)
			w.keepList("s1", "tools/list", `{"tools":[`+tools+`,`+more+`]}`)
			w.do(ask{path: "/mcp", method: "tools/list"}.request()).result(w.t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			grouped(t, 2, nil, func(t *testing.T, w *world) {
				if name == "cold" || name == "after a list" {
					w.unlisted("s1")
				}
				w.backend.tool("tools/list", func(r run) {
					if strings.Contains(r.raw, `"cursor":"2"`) {
						r.end(`{"tools":[` + more + `]}`)
						return
					}
					r.end(`{"tools":[` + tools + `],"nextCursor":"2"}`)
				})
				w.after("tool1", 10*time.Second)
				w.opts.Limit = time.Minute
				first(w)
				w.taken()
				call := ask{path: "/mcp", method: "tools/call", params: `"name":"s1__tool1","arguments":{}`}
				w.do(call.request()).is(t, "a call without tasks", 400, wire.CodeMissingCapability)
				city := ask{path: "/mcp", method: "tools/call", params: `"name":"s1__city","arguments":{"city":"x"}`, headers: []string{"Mcp-Param-City", "y"}}
				w.do(city.request()).is(t, "another city", 400, wire.CodeHeaderMismatch)
				commontest.EqualIn(t, "calls of the server", 0, len(slicesWith(w.taken(), "tools/call")))
				call.caps = taskCaps
				began := time.Now()
				w.becomes(call)
				if took := time.Since(began); took > time.Second {
					t.Errorf("the call became a task after %s", took)
				}
			})
		})
	}
}

// A server that does not tell its tools is called nevertheless, and is asked for them only if
// it may answer another time.
func TestToolsOfAServerThatDoesNotListThem(t *testing.T) {
	for name, tt := range map[string]struct {
		list  func(run)
		lists int
	}{
		"refuses":   {func(r run) { r.fail(`{"code":-32601,"message":"no"}`) }, 1},
		"fails":     {func(r run) { r.fail(`{"code":-32603,"message":"no"}`) }, 2},
		"is silent": {func(run) {}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			grouped(t, 1, nil, func(t *testing.T, w *world) {
				w.opts.Limit = time.Minute
				w.change(func(s *sessions.Server) { s.Digest, s.Anonymous = "new", false })
				w.backend.tool("tools/list", tt.list)
				for range 2 {
					a := w.do(ask{path: "/mcp", method: "tools/call", params: `"name":"s0__echo"`}.request())
					commontest.Contains(t, "", `"content":[]`, a.body)
				}
				got := w.taken()
				if n := len(slicesWith(got, `"tools/list"`)); n != tt.lists || len(got) != n+2 {
					t.Errorf("the server got %q", got)
				}
			})
		})
	}
}

// A first call at a group wakes no server whose caller lacks what the server needs.
func TestFirstCallOfAnUnconnectedUserWakesNothing(t *testing.T) {
	grouped(t, 1, nil, func(t *testing.T, w *world) {
		w.change(func(s *sessions.Server) { s.Digest, s.Anonymous, s.Providers = "new", false, []string{"github"} })
		w.secrets = unconnectedUser{}
		a := w.do(ask{path: "/mcp", method: "tools/call", params: `"name":"s0__echo"`}.request())
		commontest.Contains(t, "the answer", "connect first", a.body)
		w.silent()
	})
}

type unconnectedUser struct{}

func (unconnectedUser) Secrets(_ context.Context, want storage.Needs) (map[string]storage.Secret, error) {
	if !want.Need {
		return nil, nil
	}
	return nil, storage.Errorf(storage.Forbidden, "connect first").Because(&storage.NotConnected{})
}

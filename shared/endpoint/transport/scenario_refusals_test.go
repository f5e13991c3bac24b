package transport_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// a client can read every refusal, of every rung, method and path.
// Each is one JSON-RPC error with the content type JSON.
func TestEveryRefusalIsAnErrorOfJSONRPC(t *testing.T) {
	requests := map[string]*http.Request{}
	for _, r := range ladder() {
		a := attempted("absent")
		r.breaks(a)
		if r.name == "initialize with a session" {
			continue // this one is not alive
		}
		requests[r.name] = a.request()
	}
	for _, method := range []string{"GET", "DELETE"} {
		requests[method+" without a session"] = request(method, "/quiet/mcp", "", versionIs, "2025-11-25")
		requests[method+" of an unknown session"] = request(method, "/quiet/mcp", "", sessionIs, "absent")
		requests[method+" of nobody"] = request(method, "/quiet/mcp", "", sessionIs, "absent", "Authorization", "Bearer nobody")
	}
	requests["a message of HTTP+SSE"] = request("POST", "/quiet/message?sessionId=absent", list)
	requests["the modern era"] = saying{method: "tools/list", version: "2026-07-28", header: "tools/list", params: `{}`}.request("quiet")
	scenario(t, func(t *testing.T, s *stage) {
		s.opts.MaxBody = 1000
		for name, r := range requests {
			body := bodyOf(r)
			setBody(r, body)
			a := s.do(r)
			setBody(r, body) // for the next store
			readable(t, name, a)
		}
		v := s.visit("quiet")
		s.down("")
		readable(t, "a store that is down", v.call("x"))
	})
}

// readable asserts that an answer is a refusal that its client can read.
func readable(t *testing.T, name string, a *answer) {
	t.Helper()
	var message map[string]json.RawMessage
	if err := json.Unmarshal([]byte(a.body), &message); err != nil || a.status < 400 || a.header.Get("Content-Type") != wire.MediaJSON {
		t.Errorf("%s: got %d %s %s, %v", name, a.status, a.header.Get("Content-Type"), a.body, err)
		return
	}
	var members []string
	for member := range message {
		members = append(members, member)
	}
	slices.Sort(members)
	if diff := cmp.Diff([]string{"error", "id", "jsonrpc"}, members); diff != "" || string(message["jsonrpc"]) != `"2.0"` {
		t.Errorf("%s: got %s", name, a.body)
	}
	if code, text := a.rpcError(t); code == 0 || text == "" {
		t.Errorf("%s: got %s", name, a.body)
	}
}

// C-89: an authenticator that admits a caller without a principal has failed. The
// endpoint refuses that caller in every era, and the error does not name the caller's
// credential.
func TestWhoHasNoNameIsNotLetIn(t *testing.T) {
	for name, who := range map[string]storage.Identity{
		"nothing":      {Credential: "secret"},
		"no tenant":    {Principal: "ada", Credential: "secret"},
		"no principal": {Tenant: "tenant", Credential: "secret"},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, s *stage) {
				s.opts.Auth = letsIn{who, principal(nil)}
				for _, r := range []*http.Request{
					request("POST", "/quiet/mcp", initialize),
					request("GET", "/quiet/sse", ""),
					saying{method: "tools/list", version: "2026-07-28", header: "tools/list", params: `{"_meta":{` + metaVersion + `,` + metaCaps + `}}`}.request("quiet"),
				} {
					a := s.do(r)
					if code, _ := a.rpcError(t); a.status != http.StatusInternalServerError || code != int(wire.CodeInternal) || strings.Contains(a.body, "secret") {
						t.Errorf("%s: got %d %s", r.Method, a.status, a.body)
					}
				}
				h := newHall(s)
				if _, status := h.connect(map[string][]string{"server": {"quiet"}}); status != http.StatusInternalServerError {
					t.Errorf("a WebSocket got %d", status)
				}
				s.nothingCame(t)
			})
		})
	}
}

type letsIn struct {
	who storage.Identity
	principal
}

func (l letsIn) Authenticate(*http.Request, string) (storage.Identity, error) { return l.who, nil }
func (l letsIn) Members(r *http.Request, _ string, servers []string) (map[string]storage.Identity, error) {
	return apikey.EachServer(l, r, servers)
}

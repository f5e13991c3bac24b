package endpoints_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// oneTools are the tools at /mcp that ada of the group eng may use.
func oneTools() []string {
	return []string{"counter__add", "files__read", "files__write_note", "who__me"}
}

// oneCall returns the names of tools at an address, and the costs of calls of one there.
func (s *site) oneCall(address, token, tool string) (tools []string, costs [][2]int) {
	s.t.Helper()
	a := s.do("POST", address, initialize, bearer(token))
	in := s.as(token, []string{"Mcp-Session-Id: " + a.header.Get("Mcp-Session-Id"), "MCP-Protocol-Version: 2025-11-25"})
	s.do("POST", address, initialized, in...)
	a = s.do("POST", address, listTools, in...)
	var got struct {
		Result struct{ Tools []struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(a.body), &got); err != nil {
		s.t.Fatal(err, a)
	}
	for _, tool := range got.Result.Tools {
		tools = append(tools, tool.Name)
	}
	slices.Sort(tools)
	for range 4 {
		s.cost()
		if a := s.do("POST", address, call(tool), in...); a.status != 200 || !strings.Contains(a.body, "read is done") {
			s.t.Fatalf("%+v", a)
		}
		costs = append(costs, s.cost())
	}
	return tools, costs[1:] // the first call opens the session with the server
}

// A token and rules cost no store operation, and a refusal costs none at all. With our own
// authorization server, each instance also reads the revoked grants once.
func TestACallWithATokenCostsWhatNoAccessControlCosts(t *testing.T) {
	for address, tool := range map[string]string{"/mcp": "files__read", "/files/mcp": "read"} {
		for _, warm := range []bool{true, false} {
			t.Run(fmt.Sprint(address, warm), func(t *testing.T) { costsNothing(t, address, tool, warm) })
		}
	}
}

func costsNothing(t *testing.T, address, tool string, warm bool) {
	t.Helper()
	costs := map[string][][2]int{}
	for _, access := range []string{"open", "oauth", "idp"} {
		s := newSite(t)
		s.open, s.signIn, s.rules = access == "open", access == "oauth", true
		token := s.token("ada", "x", map[string]any{"aud": s.url + address})
		if access == "oauth" {
			_, token, _ = s.brokered(address, "")
		}
		if warm {
			s.warm = s.handler()
		}
		var tools []string
		tools, costs[access] = s.oneCall(address, token, tool)
		if d := cmp.Diff(oneTools(), tools); access != "open" && address == "/mcp" && d != "" {
			t.Errorf("%s: %s", access, d)
		}
		if !warm || access == "open" {
			continue
		}
		body, headers := modernRequest("tools/call", strings.Replace(tool, "read", "write_file", 1))
		s.cost()
		if a := s.do("POST", address, body, append(headers, bearer(token))...); !strings.Contains(a.body, `"error"`) || s.cost() != [2]int{} {
			t.Errorf("%s: a refused call costs reads or writes: %+v", access, a)
		}
	}
	if !warm {
		for i := range costs["oauth"] {
			costs["oauth"][i][0]-- // the revoked grants
		}
	}
	for _, access := range []string{"oauth", "idp"} {
		if !slices.Equal(costs[access], costs["open"]) {
			t.Errorf("calls cost %v without access control, and %v with tokens (%s)", costs["open"], costs[access], access)
		}
	}
}

// post sends a form or, as a string, JSON. It returns the members of the answer when the handler has
// done also what it does behind the answer.
func (s *site) post(path string, body any) (status int, got map[string]any) {
	s.t.Helper()
	text, kind := fmt.Sprint(body), "application/json"
	if form, ok := body.(url.Values); ok {
		text, kind = form.Encode(), "application/x-www-form-urlencoded"
	}
	r := httptest.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+path, strings.NewReader(text))
	r.Header.Set("Content-Type", kind)
	w := httptest.NewRecorder()
	s.handler().ServeHTTP(w, r)
	_ = json.NewDecoder(w.Body).Decode(&got) // /revoke answers nothing
	return w.Code, got
}

// At the address of all servers, a call without the scope of its tool is refused before anything is
// woken or written, also in search mode. A caller with a key needs no scope.
func TestACallAtAGroupNeedsTheScopeOfItsTool(t *testing.T) {
	s := newSite(t)
	s.signIn = true
	_, token, _ := s.brokered("/mcp", "")
	s.warm = s.handler()
	s.cost()
	for address, c := range map[string]struct{ tool, arguments string }{
		"/mcp": {"who__me", "{}"}, "/mcp?tools=search": {"call_tool", `{"name":"who__me","arguments":{}}`},
	} {
		body, headers := modernRequest("tools/call", c.tool)
		a := s.do("POST", address, strings.Replace(body, `"arguments":{}`, `"arguments":`+c.arguments, 1), append(headers, bearer(token))...)
		want := `Bearer error="insufficient_scope", resource_metadata="` + s.url + `/.well-known/oauth-protected-resource` + address + `", scope="mcp who:write"`
		if a.status != 403 || a.header.Get("WWW-Authenticate") != want || !strings.Contains(a.body, `"code":403`) {
			t.Errorf("%s: %+v", address, a)
		}
	}
	if got := s.cost(); got[1] != 0 {
		t.Errorf("refusals cost %v reads and writes", got)
	}
	body, headers := modernRequest("tools/call", "counter__add")
	if a := s.do("POST", "/mcp", body, append(headers, bearer(token))...); a.status != 200 || !strings.Contains(a.body, `"text":"1"`) {
		t.Errorf("a tool that needs no scope: %+v", a)
	}
	key, _, err := apikey.Create(t.Context(), s.store, apikey.Grant{Tenant: "acme", Principal: "robot", Servers: []string{"who"}})
	commontest.OK(t, err)
	body, headers = modernRequest("tools/call", "who__me")
	if a := s.do("POST", "/mcp", body, append(headers, bearer(key))...); a.status != 200 || !strings.Contains(a.body, "robot of acme") {
		t.Errorf("with a key: %+v", a)
	}
}

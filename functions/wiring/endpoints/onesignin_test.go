package endpoints_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// A token and rules cost no store operation, and a refusal costs none at all.
func TestACallWithATokenCostsWhatNoAccessControlCosts(t *testing.T) {
	costs := map[string][][2]int{}
	for _, access := range []string{"open", "oauth", "idp"} {
		s := newSite(t)
		s.open, s.signIn, s.rules = access == "open", access == "oauth", true
		token := s.token("ada", "x", map[string]any{"aud": s.url + "/mcp"})
		if access == "oauth" {
			_, token, _ = s.brokered("/mcp", "")
		}
		s.warm = s.handler()
		a := s.do("POST", "/mcp", initialize, bearer(token))
		in := s.as(token, []string{"Mcp-Session-Id: " + a.header.Get("Mcp-Session-Id"), "MCP-Protocol-Version: 2025-11-25"})
		s.do("POST", "/mcp", initialized, in...)
		for range 3 { // the first call opens the session with the server
			s.cost()
			commontest.Contains(t, access, "read is done", s.do("POST", "/mcp", call("files__read"), in...).body)
			costs[access] = append(costs[access], s.cost())
		}
		if access == "open" {
			continue
		}
		if a := s.do("POST", "/mcp", call("files__write_file"), in...); !strings.Contains(a.body, `"error"`) || s.cost()[1] != 0 {
			t.Errorf("%s: a refused call costs writes: %+v", access, a)
		}
		commontest.SameIn(t, access, costs["open"][1:], costs[access][1:])
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

// At the address of all servers, in search mode, a call without the scope of its tool is refused
// before anything is written. A caller with a key needs no scope.
func TestACallAtAGroupNeedsTheScopeOfItsTool(t *testing.T) {
	s := newSite(t)
	s.signIn = true
	_, token, _ := s.brokered("/mcp", "")
	s.warm = s.handler()
	s.cost()
	body, headers := modernRequest("tools/call", "call_tool")
	a := s.do("POST", "/mcp?tools=search", strings.Replace(body, `"arguments":{}`, `"arguments":{"name":"who__me","arguments":{}}`, 1), append(headers, bearer(token))...)
	want := `Bearer error="insufficient_scope", resource_metadata="` + s.url + metadata + `/mcp?tools=search", scope="mcp who:write"`
	if a.status != 403 || a.header.Get("WWW-Authenticate") != want || !strings.Contains(a.body, `"code":403`) {
		t.Errorf("%+v", a)
	}
	commontest.EqualIn(t, "writes of refusals", 0, s.cost()[1])
	body, headers = modernRequest("tools/call", "counter__add")
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

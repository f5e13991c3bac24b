package endpoints_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m, os.Getenv) }

// onOne runs a test on one driver.
func onOne(t *testing.T, test func(t *testing.T, s *site)) {
	t.Helper()
	storetest.One(t, func(t *testing.T, open storetest.Open) { test(t, newSiteOn(t, open(t))) })
}

// oneTools are the tools at /mcp that ada of the group eng may use.
func oneTools() []string {
	return []string{"counter__add", "files__read", "files__write_note", "who__me"}
}

// A token is good at the address that is its audience, and at no other.
func TestTokenOfAnotherAddressOpensNoGroup(t *testing.T) {
	for name, tokens := range map[string]func(s *site, address string) string{
		"oauth": func(s *site, address string) string { _, token, _ := s.brokered(address, ""); return token },
		"idp": func(s *site, address string) string {
			return s.token("ada", "x", map[string]any{"aud": []string{"https://other.example/mcp", s.url + address}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.signIn, s.rules = name == "oauth", true
			addresses := []string{"/mcp", "/g/dev/mcp", "/who/mcp"}
			for _, of := range addresses {
				token := tokens(s, of)
				for _, at := range addresses {
					a := s.do("POST", at, initialize, bearer(token))
					want := `Bearer error="invalid_token", resource_metadata="` + s.url + `/.well-known/oauth-protected-resource` + at + `", scope="mcp"`
					switch got := a.header.Get("WWW-Authenticate"); {
					case at == of && (a.status != http.StatusOK || got != ""):
						t.Errorf("a token of %s: %+v", of, a)
					case at != of && (a.status != http.StatusUnauthorized || got != want):
						t.Errorf("a token of %s at %s: %d %s", of, at, a.status, got)
					}
				}
			}
		})
	}
}

func TestWithoutATokenAGroupSaysWhereToGetOne(t *testing.T) {
	s := newSite(t)
	s.cost()
	for address, said := range map[string]string{"/mcp": "/mcp", "/mcp/?tools=search": "/mcp/?tools=search", "/g/dev/mcp": "/g/dev/mcp"} {
		t.Run(address, func(t *testing.T) {
			for _, method := range []string{"POST", "GET", "DELETE"} {
				a := s.do(method, address, initialize)
				want := `Bearer resource_metadata="` + s.url + `/.well-known/oauth-protected-resource` + said + `", scope="mcp"`
				if got := a.header.Get("WWW-Authenticate"); a.status != 401 || got != want {
					t.Errorf("%s %s: %d %s", method, address, a.status, got)
				}
			}
		})
	}
	for door, said := range map[string]string{"GET /sse": "/sse", "POST /message?sessionId=x": "/sse", "POST /g/dev/message": "/g/dev/sse"} {
		t.Run(door, func(t *testing.T) {
			method, path, _ := strings.Cut(door, " ")
			a := s.do(method, path, initialize)
			if got, want := a.header.Get("WWW-Authenticate"), `Bearer resource_metadata="`+s.url+`/.well-known/oauth-protected-resource`+said+`", scope="mcp"`; a.status != 401 || got != want {
				t.Errorf("%s: %d %s", door, a.status, got)
			}
		})
	}
	key, _, err := apikey.Create(t.Context(), s.store, apikey.Grant{Tenant: "acme", Principal: "robot", Servers: []string{"gone"}})
	commontest.OK(t, err)
	s.cost()
	if a := s.do("POST", "/mcp", initialize, bearer(key)); a.status != 403 || a.header.Get("WWW-Authenticate") != "" {
		t.Errorf("a key for no server of the group: %+v", a)
	}
	if a := s.do("POST", "/mcp", initialize, bearer("dm_aaaaaaaa_"+strings.Repeat("x", 43))); a.status != 401 {
		t.Errorf("an unknown key: %+v", a)
	}
	if cost := s.cost(); cost[0] > 2 {
		t.Errorf("two keys cost %v reads and writes", cost)
	}
}

// A user whom the rules admit to no server gets no token.
func TestAStrangerSignsInAtNoServerOfAGroup(t *testing.T) {
	s := newSite(t)
	token := s.token("eve", "x", map[string]any{"aud": s.url + "/mcp", "groups": []string{"visitors"}})
	if a := s.do("POST", "/mcp", initialize, bearer(token)); a.status != 403 || a.header.Get("WWW-Authenticate") != "" {
		t.Errorf("%+v", a)
	}
	lacking := s.token("ada", "x", map[string]any{"aud": s.url + "/mcp", "scope": "openid"})
	a := s.do("POST", "/mcp", initialize, bearer(lacking))
	want := `Bearer error="insufficient_scope", resource_metadata="` + s.url + `/.well-known/oauth-protected-resource/mcp", scope="mcp"`
	if a.status != 403 || a.header.Get("WWW-Authenticate") != want {
		t.Errorf("%+v", a)
	}
}

// oneCall returns the names of tools at the address of a group, and the costs of calls there.
func (s *site) oneCall(address, token string) (tools []string, costs [][2]int) {
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
		if a := s.do("POST", address, call("files__read"), in...); a.status != 200 || !strings.Contains(a.body, "read is done") {
			s.t.Fatalf("%+v", a)
		}
		costs = append(costs, s.cost())
	}
	return tools, costs[1:] // the first call opens the session with the server
}

// A token costs no store operation. With our own authorization
// server, each instance also reads the revoked grants once.
func TestATokenOfAGroupCostsWhatNoAccessControlCosts(t *testing.T) { storetest.One(t, groupCosts) }

func groupCosts(t *testing.T, open storetest.Open) {
	for _, warm := range []bool{true, false} {
		costs := map[string][][2]int{}
		for _, access := range []string{"open", "oauth", "idp"} {
			s := newSiteOn(t, open(t))
			s.open, s.signIn, s.rules = access == "open", access == "oauth", true
			token := s.token("ada", "x", map[string]any{"aud": s.url + "/mcp"})
			if access == "oauth" {
				_, token, _ = s.brokered("/mcp", "")
			}
			if warm {
				s.warm = s.handler()
			}
			var tools []string
			tools, costs[access] = s.oneCall("/mcp", token)
			if d := cmp.Diff(oneTools(), tools); access != "open" && d != "" {
				t.Errorf("%s: %s", access, d)
			}
		}
		if !warm {
			for i := range costs["oauth"] {
				costs["oauth"][i][0]-- // the revoked grants
			}
		}
		for _, access := range []string{"oauth", "idp"} {
			if !slices.Equal(costs[access], costs["open"]) {
				t.Errorf("warm %t: calls cost %v without access control, and %v with tokens (%s)", warm, costs["open"], costs[access], access)
			}
		}
	}
}

// post sends a form, and returns the members of the answer.
func (s *site) post(path string, form url.Values) (status int, got map[string]any) {
	s.t.Helper()
	res, err := http.PostForm(s.url+path, form) //nolint:noctx // a test
	commontest.OK(s.t, err)
	defer func() { _ = res.Body.Close() }()
	_ = json.NewDecoder(res.Body).Decode(&got) // /revoke answers nothing
	return res.StatusCode, got
}

// A grant for a group ends as one for a server does, and a program exchanges its key for a
// token of a group.
func TestGrantsAndKeysOfAGroup(t *testing.T) {
	s := newSite(t)
	s.signIn, s.rules = true, true
	client, token, refresh := s.brokered("/g/dev/mcp", "")
	if tools, _ := s.oneCall("/g/dev/mcp", token); !slices.Equal(tools, []string{"files__read", "files__write_note", "who__me"}) {
		t.Errorf("ada has %q", tools)
	}
	status, next := s.post("/token", url.Values{"grant_type": {"refresh_token"}, "client_id": {client}, "refresh_token": {refresh}, "resource": {s.url + "/g/dev/mcp"}})
	if status != 200 {
		t.Fatal(status, next)
	}
	if tools, _ := s.oneCall("/g/dev/mcp", next["access_token"].(string)); len(tools) != 3 {
		t.Errorf("after a refresh ada has %q", tools)
	}
	if status, _ := s.post("/revoke", url.Values{"token": {token}, "client_id": {client}}); status != 200 {
		t.Fatal(status)
	}
	for _, token := range []string{token, next["access_token"].(string)} {
		if a := s.do("POST", "/g/dev/mcp", initialize, bearer(token)); a.status != 401 {
			t.Errorf("a revoked grant: %+v", a)
		}
	}
	key, record, err := apikey.Create(t.Context(), s.store, apikey.Grant{Tenant: "acme", Principal: "robot", Servers: []string{"files"}})
	commontest.OK(t, err)
	status, got := s.post("/token", url.Values{"grant_type": {"client_credentials"}, "client_id": {record.ID}, "client_secret": {key}, "resource": {s.url + "/g/dev/mcp"}})
	if status != 200 {
		t.Fatal(status, got)
	}
	if tools, _ := s.oneCall("/g/dev/mcp", got["access_token"].(string)); !slices.Equal(tools, []string{"files__read", "files__write_file", "files__write_note"}) {
		t.Errorf("the key's token has %q", tools)
	}
}

// At the address of all servers, a call without the scope
// of its tool is refused in every version, before anything is woken or written. A caller
// with a key needs no scope.
func TestACallAtAGroupNeedsTheScopeOfItsTool(t *testing.T) {
	s := newSite(t)
	s.signIn = true
	s.warm = s.handler()
	_, token, _ := s.brokered("/mcp", "")
	open := func(version, token string) []string {
		a := s.do("POST", "/mcp", strings.Replace(initialize, "2025-11-25", version, 1), bearer(token))
		return s.as(token, []string{"Mcp-Session-Id: " + a.header.Get("Mcp-Session-Id")})
	}
	refused := func(name, address string, a reply) {
		t.Helper()
		at := `resource_metadata="` + s.url + `/.well-known/oauth-protected-resource` + address + `", scope="mcp who:write"`
		if a.status != 403 || a.header.Get("WWW-Authenticate") != `Bearer error="insufficient_scope", `+at || !strings.Contains(a.body, `"code":403`) {
			t.Errorf("%s: %+v", name, a)
		}
	}
	in, batch := open("2025-11-25", token), open("2025-03-26", token)
	body, headers := modernRequest("tools/call", "who__me")
	wrapped := `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"call_tool","arguments":{"name":"who__me","arguments":{}}}}`
	s.cost()
	refused("2025-11-25", "/mcp", s.do("POST", "/mcp", call("who__me"), in...))
	refused("a batch", "/mcp", s.do("POST", "/mcp", "["+call("who__me")+"]", batch...))
	refused("2026-07-28", "/mcp", s.do("POST", "/mcp", body, append(headers, bearer(token))...))
	if got := s.cost(); got[1] != 0 {
		t.Errorf("refusals cost %v reads and writes", got)
	}
	refused("search mode", "/mcp?tools=search", s.do("POST", "/mcp?tools=search", wrapped, in...))
	if a := s.do("POST", "/mcp", call("counter__add"), in...); a.status != 200 || !strings.Contains(a.body, `"text":"1"`) {
		t.Errorf("a tool that needs no scope: %+v", a)
	}
	key, _, err := apikey.Create(t.Context(), s.store, apikey.Grant{Tenant: "acme", Principal: "robot", Servers: []string{"who", "files"}})
	commontest.OK(t, err)
	keyed := open("2025-11-25", key)
	if a := s.do("POST", "/mcp", call("who__me"), keyed...); a.status != 200 || !strings.Contains(a.body, "robot of acme") {
		t.Errorf("with a key: %+v", a)
	}
	// The key is for two servers: the tools of others are neither listed nor called.
	if a := s.do("POST", "/mcp", listTools, keyed...); !strings.Contains(a.body, `"who__me"`) || !strings.Contains(a.body, `"files__read"`) || strings.Contains(a.body, "counter") {
		t.Errorf("the key has %s", a.body)
	}
	if a := s.do("POST", "/mcp", call("counter__add"), keyed...); !strings.Contains(a.body, `"error"`) || strings.Contains(a.body, `"result"`) {
		t.Errorf("a server of others: %+v", a)
	}
	body, headers = modernRequest("tools/call", "counter__add")
	if a := s.do("POST", "/mcp", body, append(headers, bearer(key))...); !strings.Contains(a.body, `"error"`) || strings.Contains(a.body, `"result"`) {
		t.Errorf("a server of others, in 2026-07-28: %+v", a)
	}
	if a := s.do("POST", "/mcp", call("counter__add"), s.as(token, keyed[:1])...); a.status != 404 {
		t.Errorf("the session of another principal: %+v", a)
	}
}

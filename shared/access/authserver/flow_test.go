package authserver_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/access/authserver"
	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestMetadataNamesThePublicURL(t *testing.T) {
	s := newSite(t, nil)
	got := answer(t, s.do(http.MethodGet, "/.well-known/oauth-authorization-server", nil, http.Header{"X-Forwarded-Host": {"evil.example"}, "X-Forwarded-Proto": {"https"}}))
	for name, want := range map[string]any{
		"issuer": at, "authorization_endpoint": at + "/authorize", "token_endpoint": at + "/token", "registration_endpoint": at + "/register", "revocation_endpoint": at + "/revoke",
		"code_challenge_methods_supported": []any{"S256"}, "token_endpoint_auth_methods_supported": []any{"none", "client_secret_post", "client_secret_basic"},
		"scopes_supported": []any{"mcp"}, "authorization_response_iss_parameter_supported": true, "client_id_metadata_document_supported": true,
	} {
		commontest.SameIn(t, name, want, got[name])
	}
}

// A page whose domain name leads to this machine must not read our pages (DNS rebinding).
func TestAForeignHostIsRefusedOnLoopback(t *testing.T) {
	s := newSite(t, nil)
	for _, host := range []string{"evil.example:8787", "evil.example", "127.0.0.1:9", ""} {
		commontest.EqualIn(t, host, http.StatusForbidden, s.do(http.MethodGet, "http://"+host+"/authorize?client_id=x", nil, nil).StatusCode)
	}
}

func TestPagesOfOtherOriginsMayUseOnlyWhatIsForClients(t *testing.T) {
	s := newSite(t, nil)
	for path, public := range map[string]bool{
		"/.well-known/oauth-authorization-server": true, "/token": true, "/register": true, "/revoke": true, "/authorize": false, "/callback": false, "/login": false,
	} {
		origin := http.Header{"Origin": {"https://app.example"}, "Access-Control-Request-Headers": {"mcp-protocol-version"}}
		pre := s.do(http.MethodOptions, at+path, nil, origin)
		commontest.EqualIn(t, "preflight of "+path, public, pre.StatusCode == http.StatusNoContent && strings.Contains(pre.Header.Get("Access-Control-Allow-Headers"), "MCP-Protocol-Version"))
		commontest.EqualIn(t, path+", Access-Control-Allow-Origin is", public, s.do(http.MethodGet, at+path, nil, origin).Header.Get("Access-Control-Allow-Origin") == "*")
	}
}

// One write makes the grant before the tokens are sent, and one keeps it afterwards.
func TestTheWholeFlowCostsTwoWrites(t *testing.T) {
	s := newSite(t, nil)
	g := s.code("scope", "mcp openid offline_access files:write unknown")
	if c := s.store.Counts(); c.Writes != 0 || c.Reads != 0 {
		t.Errorf("before the code is redeemed: %+v", c)
	}
	status, got := s.token(g.form)
	if status != http.StatusOK || got["token_type"] != "Bearer" || got["expires_in"] != 3600.0 || got["scope"] != "mcp files:write" {
		t.Fatal(status, got)
	}
	if c := s.store.Counts(); c.Writes != 2 || c.Reads != 0 {
		t.Errorf("%+v, want two writes", c)
	}
	who, err := verify(t, s.issued(), got["access_token"].(string), "files")
	if err != nil || who.Tenant != "default" || who.Principal != "dev:ada" || !slices.Equal(who.Scopes, []string{"mcp", "files:write"}) {
		t.Errorf("%+v, %v", who, err)
	}
	for server, want := range map[string]bool{"files": true, "other": false, "closed": false, "": false} {
		commontest.EqualIn(t, "the token is good for "+server, want, s.good(got["access_token"].(string), server))
	}
	var props map[string]any
	commontest.OK(t, json.Unmarshal(who.Props, &props))
	commontest.Same(t, map[string]any{"email": "ada@localhost", "scope": "mcp files:write", "client_id": g.client}, props)
}

func TestNoTokenAndNoCodeIsLogged(t *testing.T) {
	s := newSite(t, nil)
	g := s.code()
	_, got := s.token(g.form)
	refresh := got["refresh_token"].(string)
	s.token(refreshing(g.client, refresh))
	s.do(http.MethodPost, at+"/revoke", url.Values{"token": {refresh}}, nil)
	s.token(with(g.form, "code", "x"))
	for what, secret := range map[string]string{"code": g.code, "access token": got["access_token"].(string), "refresh token": refresh, "verifier": verifier} {
		if strings.Contains(s.log.String(), secret) {
			t.Errorf("the log has the %s", what)
		}
	}
	commontest.Contains(t, "the log", `"path":"/token"`, s.log.String())
}

func TestWithoutProofOfPossessionThereAreNoTokens(t *testing.T) {
	s := newSite(t, nil)
	client := s.register(callback)
	for _, changes := range [][]string{{"code_challenge", ""}, {"code_challenge_method", "plain"}, {"code_challenge_method", ""}, {"code_challenge", verifier[:20]}, {"code_challenge", challenge + "A"}} {
		commontest.EqualIn(t, fmt.Sprint(changes), "invalid_request", s.refusal(request(client, changes...)))
	}
	g := s.code()
	for _, wrong := range []string{"", challenge, verifier + "A", verifier[1:], strings.Repeat("a", 129)} {
		s.refusedWith(t, with(g.form, "code_verifier", wrong), "invalid_grant")
	}
	s.granted(g.form) // a wrong verifier has used up the code
	// RFC 7636 §4.1: a verifier has 43 characters or more, so that nobody guesses it.
	short := sha256.Sum256([]byte(verifier[1:]))
	g = s.code("code_challenge", base64.RawURLEncoding.EncodeToString(short[:]))
	s.refusedWith(t, with(g.form, "code_verifier", verifier[1:]), "invalid_grant")
}

func TestACodeIsBoundToClientAddressAndResource(t *testing.T) {
	s := newSite(t, nil)
	g, other := s.code(), s.register(callback)
	s.refusedWith(t, with(g.form, "client_id", other), "invalid_grant")
	s.refusedWith(t, with(g.form, "redirect_uri", callback+"2"), "invalid_grant")
	s.refusedWith(t, with(g.form, "redirect_uri", ""), "invalid_grant")
	s.refusedWith(t, with(g.form, "redirect_uri", "http://127.0.0.1:5001/cb"), "invalid_grant")
	s.refusedWith(t, with(g.form, "resource", at+"/other/mcp"), "invalid_target")
	s.refusedWith(t, with(g.form, "resource", at+"/files"), "invalid_target")
	s.refusedWith(t, with(g.form, "code", g.code[:len(g.code)-1]), "invalid_grant")
	s.refusedWith(t, with(g.form, "code", ""), "invalid_grant")
	twice, asked := with(g.form), request(other)
	twice.Add("code_verifier", "x")
	s.refusedWith(t, twice, "invalid_request")
	asked.Add("redirect_uri", "https://evil.example/cb")
	s.wantPage("two addresses", s.get(ask(asked)))
	s.granted(with(g.form, "resource", at+"/files/sse/")) // another form of the same resource
}

func TestTheIssuerIsInEveryRedirect(t *testing.T) {
	s := newSite(t, nil)
	client := s.register(callback)
	ok := s.browser().signIn(ask(request(client)), "ada", "")
	refused := s.browser().signIn(ask(request(client, "resource", at+"/closed/mcp")), "ada", "")
	wrong := s.get(ask(request(client, "response_type", "token")))
	u, err := url.Parse(wrong.Header.Get("Location"))
	commontest.OK(t, err)
	for name, q := range map[string]url.Values{"success": ok, "access_denied": refused, "unsupported_response_type": u.Query()} {
		if q.Get("iss") != at || q.Get("state") != "s&t=1" || name != "success" && (q.Get("error") != name || q.Get("code") != "") {
			t.Errorf("%s: %v", name, q)
		}
	}
}

func TestResources(t *testing.T) {
	s := newSite(t, nil)
	client := s.register(callback)
	for _, wrong := range []string{at + "/files", at + "//", "https://127.0.0.1:8787", at + "/nothing/mcp", "https://evil.example/files/mcp", at + "/files/mcp#a"} {
		commontest.EqualIn(t, wrong, "invalid_target", s.refusal(request(client, "resource", wrong)))
	}
	two := request(client)
	two.Add("resource", at+"/other/mcp")
	commontest.Contains(t, "two resources", "invalid_target", s.get(ask(two)).Header.Get("Location"))
	// Without a resource the page asks, and the token is for the chosen server.
	b := s.browser()
	f := with(fields(text(t, b.get(ask(request(client, "resource", ""))))), "answer", "allow", "server", "nothing")
	commontest.EqualIn(t, "another server", http.StatusBadRequest, b.open(http.MethodPost, at+"/authorize", f).StatusCode)
	q := b.signIn(ask(request(client, "resource", "")), "ada", "")
	got := s.granted(redeeming(client, q.Get("code")))
	commontest.EqualIn(t, "the token is good", true, s.good(got["access_token"].(string), "files"))
	s.refusedWith(t, with(refreshing(client, got["refresh_token"].(string)), "resource", at+"/other/mcp"), "invalid_target")
	s.granted(refreshing(client, got["refresh_token"].(string))) // refresh without a resource
	// The public URL alone says as much, with every kind of request.
	for _, origin := range []string{at, strings.ToUpper(at[:4]) + at[4:] + "/"} {
		g := s.code("resource", origin)
		g.form.Set("resource", origin)
		got := s.granted(g.form)
		commontest.EqualIn(t, origin+": the token is good", true, s.good(got["access_token"].(string), "files"))
		s.granted(with(refreshing(g.client, got["refresh_token"].(string)), "resource", origin))
	}
	// If there is only one server, a request need not name it.
	one := newSite(t, nil)
	one.config.Servers, one.config.Allow, one.config.Scopes = []string{"files"}, nil, nil
	for _, resource := range []string{"", at + "/"} {
		_, access, _ := one.tokens("resource", resource)
		commontest.EqualIn(t, "the token of the only server is good", true, one.good(access, "files"))
	}
}

func TestWaysToAuthenticate(t *testing.T) {
	s := newSite(t, nil)
	basic := func(id, secret string) http.Header {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, at, nil)
		r.SetBasicAuth(url.QueryEscape(id), url.QueryEscape(secret))
		return r.Header
	}
	status := func(f url.Values, header http.Header) int {
		return s.do(http.MethodPost, at+"/token", f, header).StatusCode
	}
	g := s.code()
	commontest.EqualIn(t, "a secret that the client has not", http.StatusUnauthorized, status(with(g.form, "client_id", ""), basic(g.client, "x")))
	commontest.EqualIn(t, "two ids", http.StatusBadRequest, status(g.form, basic("x", "")))
	commontest.EqualIn(t, "Basic with an empty password", http.StatusOK, status(with(g.form, "client_id", ""), basic(g.client, "")))
	for _, method := range []string{"client_secret_post", "client_secret_basic"} {
		doc := answer(t, s.json("/register", map[string]any{"redirect_uris": []string{callback}, "token_endpoint_auth_method": method}))
		id, secret := doc["client_id"].(string), doc["client_secret"].(string)
		f := redeeming(id, s.browser().signIn(ask(request(id)), "ada", "").Get("code"))
		s.refusedWith(t, f, "invalid_client")
		s.refusedWith(t, with(f, "client_secret", "x"+secret), "invalid_client")
		if method == "client_secret_basic" {
			commontest.EqualIn(t, method, http.StatusOK, status(with(f, "client_id", ""), basic(id, secret)))
			continue
		}
		access := s.granted(with(f, "client_secret", secret))["access_token"].(string)
		for _, c := range []struct {
			secret string
			good   bool
		}{{"", true}, {"x" + secret, true}, {secret, false}} {
			s.do(http.MethodPost, at+"/revoke", with(url.Values{"token": {access}, "client_id": {id}}, "client_secret", c.secret), nil)
			commontest.EqualIn(t, "after a revocation with the secret "+c.secret+" the token is good", c.good, s.good(access, "files"))
		}
	}
}

func TestTheAddressOfSeveralServersIsAResource(t *testing.T) {
	s := newSite(t, func(c *authserver.Config) {
		c.Groups = map[string][]string{"/mcp": {"files", "other", "closed"}, "/g/dev/mcp": {"other", "unserved"}, "/g/none/mcp": {"unserved"}}
		c.Claims = []string{"about"}
		c.Login = fixed{"sub": "ada", "groups": []any{"staff"}, "about": strings.Repeat("a", 1900)}
	})
	client := s.register(callback)
	page := func(resource string) string {
		return text(t, s.get(ask(request(client, "resource", resource, "scope", "mcp files:write"))))
	}
	for resource, want := range map[string]string{at + "/mcp?names=plain": "files, other, closed. It can", at + "/g/dev/mcp": "<dd>Use these servers: other. It can"} {
		if got := page(resource); !strings.Contains(got, want) || !strings.Contains(got, "several servers") || strings.Contains(got, "files:write") == strings.Contains(resource, "dev") {
			t.Errorf("%s: %s", resource, got)
		}
	}
	for _, wrong := range []string{at + "/g/none/mcp", at + "/g/dev", at + "/mcp#a"} {
		commontest.EqualIn(t, wrong, "invalid_target", s.refusal(request(client, "resource", wrong)))
	}
	g := s.code("resource", at+"/mcp")
	g.form.Set("resource", at+"/mcp")
	s.refusedWith(t, with(g.form, "resource", at+"/files/mcp"), "invalid_target")
	got := s.granted(g.form)
	access, refresh := got["access_token"].(string), got["refresh_token"].(string)
	if s.good(access, "files") || len(access) > 4096 || len(refresh) > 100 {
		t.Errorf("a token of %d characters for the group is good for a server alone: %t", len(access), s.good(access, "files"))
	}
	members := func(token string) []string {
		all, err := s.issued().VerifyGroup(t.Context(), token, "/mcp", []string{"files", "other", "closed"})
		commontest.OK(t, err)
		return slices.Sorted(maps.Keys(all))
	}
	commontest.SameIn(t, "the token is good for", []string{"files", "other"}, members(access))
	// The current rules apply, also to tokens that were issued earlier.
	s.config.Allow = map[string]resourceserver.Rule{"closed": {Groups: []string{"admins"}}, "files": {Groups: []string{"admins"}}, "*": {Everyone: true}}
	commontest.SameIn(t, "after a change of the rules it is good for", []string{"other"}, members(access))
	s.config.Allow = map[string]resourceserver.Rule{"*": {Groups: []string{"admins"}}}
	s.refusedWith(t, refreshing(g.client, refresh), "invalid_grant")
}

package authserver_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/authserver"
	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestRedirectURIs(t *testing.T) {
	s := newSite(t, nil)
	good := s.register(callback)
	for why, uris := range map[string][]string{
		"": {
			"https://client.example:8443/cb?a=b", "https://xn--bcher-kva.example/", "http://127.0.0.1:33418/", "http://localhost:3334/oauth/callback", "http://[::1]:8080/cb",
			"cursor://anysphere.cursor-mcp/oauth/callback", "com.example.app:/cb", "x-private+1.0://host/a?b=c",
		},
		"a scheme that no program has": {
			"javascript:alert(1)", "javascript://client.example/%0aalert(1)", "data:text/html,x", "file:///etc/passwd", "blob:https://client.example/x", "view-source://client.example/",
			"intent://client.example/#Intent;end", "wss://client.example/", "mailto:ada@evil.example", "urn:ietf:wg:oauth:2.0:oob",
		},
		"no place in a program":  {"com.example.app:cb", "claude:", "Claude://claude.ai/cb", "claude://user@claude.ai/cb"},
		"a user, or a fragment":  {"https://user:pw@client.example/cb", "https://client.example/cb#"},
		"more hosts than one":    {"https://*.client.example/cb", "https://client.example\\@evil.example/", "http://127.0.0.1@evil.example/"},
		"no host, or no port":    {"https:\\evil.example/", "https:///cb", "//client.example/cb", "/cb", "", "https://client.example:0/", "https://client.example:/"},
		"not written as it must": {"HTTPS://client.example/", "http://LOCALHOST/cb", "https://client.exämple/", "https://[::ffff:zz]/", "https://client.example/%zz", "https://client.example/a b", "https://client.example/\r\nX: y"},
		"http to another machine": {
			"http://client.example/cb", "http://localhost.evil.example/cb", "http://0.0.0.0/cb", "http://127.1/cb", "http://2130706433/cb",
		},
		"too long": {"https://client.example/" + strings.Repeat("a", 600)},
	} {
		for _, uri := range uris {
			res := s.json("/register", map[string]any{"redirect_uris": []string{uri}})
			if ok := why == ""; (res.StatusCode == http.StatusCreated) != ok || !ok && answer(t, res)["error"] != "invalid_redirect_uri" {
				t.Errorf("registration of %q, %s: %s", uri, why, res.Status)
			}
			// Another client's request with the URI is answered by a page.
			page := s.get(ask(request(good, "redirect_uri", uri)))
			if page.StatusCode != http.StatusBadRequest || page.Header.Get("Location") != "" || strings.Contains(text(t, page), "evil") {
				t.Errorf("request with %q: %s %v", uri, page.Status, page.Header)
			}
		}
	}
}

func TestLoopbackPortsDoNotCount(t *testing.T) {
	s := newSite(t, nil)
	for registered, asked := range map[string]map[string]bool{
		"http://127.0.0.1:1/cb": {"http://127.0.0.1:2/cb": true, "http://127.0.0.1/cb": true, "http://127.0.0.1:2/": false, "http://localhost:1/cb": false},
		"http://localhost/cb":   {"http://localhost:50000/cb": true, "http://localhost:50000/cb?x=1": false},
		"http://[::1]:1/cb":     {"http://[::1]:2/cb": true, "http://[::1]/cb": true},
		"https://a.example/cb":  {"https://a.example:444/cb": false, "https://a.example/cb/": false, "https://A.example/cb": false},
	} {
		client := s.register(registered)
		for uri, ok := range asked {
			res := s.get(ask(request(client, "redirect_uri", uri)))
			commontest.EqualIn(t, uri+" for a client with "+registered, ok, res.StatusCode == http.StatusOK)
		}
	}
}

func cursor() []string {
	return []string{"cursor://anysphere.cursor-mcp/oauth/callback", "https://www.cursor.com/agents/mcp/oauth/callback", "http://localhost:8787/callback"}
}

func TestARegistrationIsGoodForNinetyDays(t *testing.T) {
	inTime(t, func(t *testing.T, s *site) {
		id := s.register(cursor()...)
		begins := func(when, id string, want int) {
			t.Helper()
			commontest.EqualIn(t, when, want, s.get(ask(request(id, "redirect_uri", cursor()[1]))).StatusCode)
		}
		changed := []byte(id)
		changed[10] ^= 1
		begins("a changed id", string(changed), http.StatusBadRequest)
		time.Sleep(89 * 24 * time.Hour)
		begins("after 89 days", id, http.StatusOK)
		time.Sleep(2 * 24 * time.Hour)
		begins("after 91 days", id, http.StatusBadRequest)
		s.refusedWith(t, refreshing(id, "dr_x"), "invalid_client")
	})
}

// A registration keeps the redirect URIs that can be used, and says which cannot, if none can.
func TestARegistrationIsAnsweredAsItWasTaken(t *testing.T) {
	s := newSite(t, nil)
	const claude = "claude://claude.ai/mcp-auth-callback/sdk"
	for method, want := range map[string][]string{"none": {callback, claude}, "client_secret_post": {callback}} {
		got := answer(t, s.json("/register", map[string]any{
			"client_name": `<script>x</script>"'`, "redirect_uris": []string{"javascript:alert(1)", callback, claude}, "grant_types": []string{"implicit"}, "scope": "everything", "token_endpoint_auth_method": method,
		}))
		commontest.EqualIn(t, method, fmt.Sprintln(want, "[authorization_code refresh_token]", nil), fmt.Sprintln(got["redirect_uris"], got["grant_types"], got["scope"]))
		id := got["client_id"].(string)
		commontest.EqualIn(t, "a URI that was left out", http.StatusBadRequest, s.get(ask(request(id, "redirect_uri", "javascript:alert(1)"))).StatusCode)
		page := text(t, s.get(ask(request(id)))) + text(t, s.get(at+`/login?state="><script>x`))
		if commontest.Contains(t, "the page", "&lt;script&gt;", page); strings.Contains(page, "<script>") {
			t.Error(page)
		}
	}
	for body, want := range map[string]string{
		`{`: "invalid_client_metadata", `[]`: "invalid_client_metadata", `{}`: "invalid_redirect_uri", `{"redirect_uris":["https://ada:hunter2@client.example/"]}`: "invalid_redirect_uri",
		`{"redirect_uris":["https://a.example/"],"token_endpoint_auth_method":"private_key_jwt"}`:          "invalid_client_metadata",
		`{"redirect_uris":[` + strings.TrimSuffix(strings.Repeat(`"https://a.example/",`, 11), ",") + `]}`: "invalid_redirect_uri",
		`{"redirect_uris":["` + strings.Repeat("x", 70<<10) + `"]}`:                                        "invalid_client_metadata",
	} {
		res := s.post("/register", body)
		if got := answer(t, res); res.StatusCode != http.StatusBadRequest || got["error"] != want || strings.Contains(fmt.Sprint(got), "hunter2") {
			t.Errorf("%.100s: %s %v", body, res.Status, got)
		}
	}
}

func TestClientsOfTheSettings(t *testing.T) {
	s := newSite(t, func(c *authserver.Config) {
		c.Clients = map[string]resourceserver.Client{"mine": {Name: "Mine", RedirectURIs: []string{callback}, Secret: "s3cret"}, "public": {RedirectURIs: []string{callback}}}
	})
	for id, secret := range map[string]string{"mine": "s3cret", "public": ""} {
		q := s.browser().signIn(ask(request(id)), "ada", "")
		f := redeeming(id, q.Get("code"))
		s.refusedWith(t, with(f, "client_secret", "wrong"), "invalid_client")
		if secret != "" {
			s.refusedWith(t, f, "invalid_client")
		}
		s.granted(with(f, "client_secret", secret))
	}
}

func TestConsentComesFirst(t *testing.T) {
	s := newSite(t, nil)
	client, other := s.register(callback, "https://client.example/cb", "https://elsewhere.example/cb", "com.example.app:/cb"), s.register("https://client.example/cb")
	b := s.browser()
	asks := func(name string, q url.Values, want bool) {
		t.Helper()
		res := b.get(ask(q))
		commontest.EqualIn(t, name+": a page", want, res.StatusCode == http.StatusOK)
	}
	local := request(client)
	first := with(local, "redirect_uri", "https://client.example/cb")
	res := b.get(ask(local))
	page := text(t, res)
	for _, part := range []string{"<b>Test client</b>", "<b>files</b>", "<b>127.0.0.1</b>", "has given its name itself", "program on the computer"} {
		commontest.Contains(t, "the page does not say", part, page)
	}
	for _, c := range res.cookies {
		commontest.EqualIn(t, "a sign-in was begun before the consent", false, strings.HasPrefix(c.Name, "dm_flow"))
	}
	asks("again, without an answer", first, true)
	b.signIn(ask(first), "ada", "")
	asks("again, with the answer", first, false)
	asks("fewer scopes", with(first, "scope", ""), false)
	asks("more scopes", with(first, "scope", "files:write"), true)
	asks("another server", with(first, "resource", at+"/other/mcp"), true)
	asks("another client", with(first, "client_id", other), true)
	asks("another host", with(first, "redirect_uri", "https://elsewhere.example/cb"), true)
	asks("the page is wanted", with(first, "prompt", "consent"), true)
	asks("no page is wanted", with(first, "prompt", "none"), false)
	commontest.Contains(t, "no page is wanted, and there is no consent", "error=interaction_required", s.get(ask(with(first, "prompt", "none"))).Header.Get("Location"))
	// Any program of the user's machine may be behind the next port of loopback, or have
	// claimed the scheme (RFC 8252 §8.6), so such a consent is not remembered.
	for _, redirect := range []string{callback, "com.example.app:/cb"} {
		program := with(local, "redirect_uri", redirect)
		b.signIn(ask(program), "ada", "")
		asks("a program, with the answer of before: "+redirect, program, true)
	}
	refuser := s.browser()
	f := with(fields(text(t, refuser.get(ask(local)))), "answer", "deny")
	if to := refuser.open(http.MethodPost, at+"/authorize", f).Header.Get("Location"); !strings.HasPrefix(to, callback) || !strings.Contains(to, "error=access_denied") {
		t.Error("a refusal leads to", to)
	}
}

func TestTheCallbackIsForTheBrowserThatBegan(t *testing.T) {
	s := newSite(t, nil)
	client := s.register(callback)
	b := s.browser()
	login := b.begin(ask(request(client)))
	f := fields(text(t, b.get(login)))
	f.Set("name", "ada")
	to := b.open(http.MethodPost, at+"/login", f).Header.Get("Location")
	refused := func(name string, b *browser, to string) {
		t.Helper()
		s.wantPage(name, b.get(to))
	}
	refused("no cookie", s.browser(), to)
	other := s.browser()
	other.begin(ask(request(client)))
	refused("the cookie of another flow", other, to)
	refused("no state", b, at+"/callback?code=x")
	refused("another state", b, strings.Replace(to, "state=", "state=A", 1))
	if res := b.get(to); res.StatusCode != http.StatusSeeOther {
		t.Fatal(res.Status)
	}
	refused("twice", b, to)
}

func TestTheConsentPageCannotBeForged(t *testing.T) {
	s := newSite(t, nil)
	client := s.register(callback)
	b, other := s.browser(), s.browser()
	res := b.get(ask(request(client)))
	// Cross-Origin-Opener-Policy would cut off a client in a web page from the window that it has
	// opened for the sign-in.
	for name, want := range map[string]string{
		"X-Frame-Options": "DENY", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff", "Access-Control-Allow-Origin": "", "Cross-Origin-Opener-Policy": "",
	} {
		commontest.EqualIn(t, name, want, res.Header.Get(name))
	}
	for _, part := range []string{"default-src 'none'; style-src 'nonce-", "frame-ancestors 'none'", "form-action 'self'"} {
		commontest.Contains(t, "the policy", part, res.Header.Get("Content-Security-Policy"))
	}
	f := fields(text(t, res))
	f.Set("answer", "allow")
	theirs := fields(text(t, other.get(ask(request(client)))))
	for name, attempt := range map[string]func() *reply{
		"no cookie": func() *reply { return s.browser().open(http.MethodPost, at+"/authorize", f) },
		"another's page": func() *reply {
			return b.open(http.MethodPost, at+"/authorize", with(f, "request", theirs.Get("request")))
		},
		"another origin": func() *reply {
			h := http.Header{"Origin": {"https://evil.example"}}
			for _, c := range res.cookies {
				h.Set("Cookie", c.Name+"="+c.Value)
			}
			return s.do(http.MethodPost, at+"/authorize", f, h)
		},
	} {
		if got := attempt(); got.StatusCode != http.StatusBadRequest || len(got.cookies) > 0 {
			t.Errorf("%s: %s", name, got.Status)
		}
	}
	commontest.EqualIn(t, "the page itself", http.StatusSeeOther, b.open(http.MethodPost, at+"/authorize", f).StatusCode)
}

func TestCookiesAreTiedToTheHost(t *testing.T) {
	s := newSite(t, func(c *authserver.Config) {
		c.PublicURL, c.Issuer, c.ClientID, c.Login = "https://mcp.example.com", "https://login.example.com", "us", fixed{"sub": "ada"}
	})
	id := answer(t, s.json("/register", map[string]any{"redirect_uris": []string{callback}}))["client_id"].(string)
	q := request(id, "resource", "https://mcp.example.com/files/mcp")
	res := s.get("https://mcp.example.com/authorize?" + q.Encode())
	if len(res.cookies) != 1 {
		t.Fatal(res.Status, res.cookies)
	}
	c := res.cookies[0]
	if !strings.HasPrefix(c.Name, "__Host-") || !c.Secure || !c.HttpOnly || c.Path != "/" || c.Domain != "" || c.SameSite != http.SameSiteLaxMode {
		t.Errorf("%+v", c)
	}
}

// A browser follows a form only to addresses that the policy of the page names, and so
// with all redirects after it. Both forms lead to the client in the end.
func TestThePolicyOfEachFormAllowsTheWayToTheClient(t *testing.T) {
	for redirect, source := range map[string]string{
		"http://127.0.0.1:4000/done": "http://127.0.0.1:4000", "cursor://anysphere.cursor-mcp/oauth/callback": "cursor:", "https://client.example/done": "https:",
	} {
		s := newSite(t, nil)
		b := s.browser()
		target := ask(request(s.register(redirect), "redirect_uri", redirect))
		for name, page := range map[string]*reply{"consent": s.get(target), "sign-in": b.get(b.begin(target))} {
			_, actions, _ := strings.Cut(page.Header.Get("Content-Security-Policy"), "form-action ")
			actions, _, _ = strings.Cut(actions, ";")
			if !slices.Contains(strings.Fields(actions), source) {
				t.Errorf("the page for %s allows only %q, not the way to %s", name, actions, redirect)
			}
		}
	}
}

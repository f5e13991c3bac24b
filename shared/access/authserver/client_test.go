package authserver_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/authserver"
	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/store/storetest"
)

// redirects says of redirect URIs whether they may be registered.
func redirects() map[string]bool {
	return map[string]bool{
		"https://client.example/cb":                          true,
		"https://client.example:8443/cb?a=b":                 true,
		"https://xn--bcher-kva.example/":                     true,
		"http://127.0.0.1:33418/":                            true,
		"http://127.0.0.1/":                                  true,
		"http://localhost/callback":                          true,
		"http://localhost:3334/oauth/callback":               true,
		"http://[::1]:8080/cb":                               true,
		"cursor://anysphere.cursor-mcp/oauth/callback":       true,
		"vscode://vscode.microsoft-authentication/x":         true,
		"vscode-insiders://x/y":                              true,
		"claude://claude.ai/mcp-auth-callback/sdk":           true,
		"windsurf://codeium.windsurf/oauth/callback":         true,
		"goose://oauth":                                      true,
		"com.example.app:/cb":                                true,
		"com.example.app:///cb":                              true,
		"x-private+1.0://host/a?b=c":                         true,
		"com.example.app:cb":                                 false,
		"claude:":                                            false,
		"Claude://claude.ai/cb":                              false,
		"claude://claude.ai/cb#x":                            false,
		"claude://user@claude.ai/cb":                         false,
		"claude://claude.ai/a b":                             false,
		"mailto:ada@evil.example":                            false,
		"urn:ietf:wg:oauth:2.0:oob":                          false,
		"data://client.example/x":                            false,
		"blob://client.example/x":                            false,
		"about://blank/":                                     false,
		"vbscript://client.example/x":                        false,
		"filesystem:https://client.example/temporary/x":      false,
		"view-source://client.example/":                      false,
		"intent://client.example/#Intent;end":                false,
		"intent://client.example/":                           false,
		"ws://client.example/":                               false,
		"wss://client.example/":                              false,
		"https://user@client.example/cb":                     false,
		"https://user:pw@client.example/cb":                  false,
		"https://client.example/cb#fragment":                 false,
		"https://client.example/cb#":                         false,
		"https://*.client.example/cb":                        false,
		"https://client.example\\@evil.example/":             false,
		"https:\\\\evil.example/":                            false,
		"https:///cb":                                        false,
		"https:client.example/cb":                            false,
		"https://client.example:0/":                          false,
		"https://client.example:/":                           false,
		"https://client.example:99999999/":                   false,
		"https://client example/":                            false,
		"https://client.example/a b":                         false,
		"https://client.exämple/":                            false,
		"https://client.example/\r\nX: y":                    false,
		"https://[::1/":                                      false,
		"https://[::ffff:zz]/":                               false,
		"HTTPS://client.example/":                            false,
		"http://client.example/cb":                           false,
		"http://localhost.evil.example/cb":                   false,
		"http://127.0.0.1.evil.example/":                     false,
		"http://127.0.0.1@evil.example/":                     false,
		"http://0.0.0.0/cb":                                  false,
		"http://127.1/cb":                                    false,
		"http://2130706433/cb":                               false,
		"http://LOCALHOST/cb":                                false,
		"javascript:alert(1)":                                false,
		"javascript://client.example/%0aalert(1)":            false,
		"data:text/html,x":                                   false,
		"file:///etc/passwd":                                 false,
		"blob:https://client.example/x":                      false,
		"about:blank":                                        false,
		"vbscript:x":                                         false,
		"//client.example/cb":                                false,
		"/cb":                                                false,
		"":                                                   false,
		"https://client.example/%zz":                         false,
		"https://client.example/" + strings.Repeat("a", 600): false,
	}
}

func TestRedirectURIs(t *testing.T) {
	one(t, func(t *testing.T, s *site) {
		good := s.register(callback)
		_, challenge := pkce()
		for uri, ok := range redirects() {
			res := s.json("/register", map[string]any{"redirect_uris": []string{uri}})
			if (res.StatusCode == http.StatusCreated) != ok || !ok && answer(t, res)["error"] != "invalid_redirect_uri" {
				t.Errorf("registration of %q: %s", uri, res.Status)
			}
			// Another client's request with the URI is answered by a page.
			page := s.browser().open(http.MethodGet, at+"/authorize?"+request(good, challenge, "redirect_uri", uri).Encode(), nil)
			if page.StatusCode != http.StatusBadRequest || page.Header.Get("Location") != "" || strings.Contains(text(t, page), "evil") {
				t.Errorf("request with %q: %s %v", uri, page.Status, page.Header)
			}
		}
	})
}

func TestLoopbackPortsDoNotCount(t *testing.T) {
	one(t, func(t *testing.T, s *site) {
		_, challenge := pkce()
		for registered, asked := range map[string]map[string]bool{
			"http://127.0.0.1:1/cb": {"http://127.0.0.1:2/cb": true, "http://127.0.0.1/cb": true, "http://127.0.0.1:2/": false, "http://localhost:1/cb": false},
			"http://localhost/cb":   {"http://localhost:50000/cb": true, "http://localhost:50000/cb?x=1": false},
			"http://[::1]:1/cb":     {"http://[::1]:2/cb": true, "http://[::1]/cb": true},
			"https://a.example/cb":  {"https://a.example:444/cb": false, "https://a.example/cb/": false, "https://A.example/cb": false},
		} {
			client := s.register(registered)
			for uri, ok := range asked {
				res := s.browser().open(http.MethodGet, at+"/authorize?"+request(client, challenge, "redirect_uri", uri).Encode(), nil)
				if (res.StatusCode == http.StatusOK) != ok {
					t.Errorf("%s for a client with %s: %s", uri, registered, res.Status)
				}
			}
		}
	})
}

// cursor returns the redirect URIs that Cursor registers.
func cursor() []string {
	return []string{"cursor://anysphere.cursor-mcp/oauth/callback", "https://www.cursor.com/agents/mcp/oauth/callback", "http://localhost:8787/callback"}
}

func TestRegistrationsStoreNothing(t *testing.T) {
	s := newSite(t, storetest.SQLite, func(c *authserver.Config) { c.Log = nil })
	function := s.broker()
	body := `{"redirect_uris":["` + strings.Join(cursor(), `","`) + `"]}`
	for range 1_000 {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, at+"/register", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		if function.ServeHTTP(w, r); w.Code != http.StatusCreated {
			t.Fatal(w.Code, w.Body)
		}
	}
	if c := s.store.Counts(); c.Reads+c.Writes != 0 {
		t.Errorf("%+v", c)
	}
}

func TestARegistrationIsGoodForNinetyDays(t *testing.T) {
	inTime(t, func(t *testing.T, s *site) {
		id := s.register(cursor()...)
		if len(id) > 255 {
			t.Errorf("the id has %d characters", len(id))
		}
		_, challenge := pkce()
		begin := func(id string) int {
			return s.browser().open(http.MethodGet, at+"/authorize?"+request(id, challenge, "redirect_uri", cursor()[1]).Encode(), nil).StatusCode
		}
		commontest.Equal(t, http.StatusOK, begin(id))
		changed := []byte(id)
		changed[10] ^= 1
		commontest.EqualIn(t, "a changed id", http.StatusBadRequest, begin(string(changed)))
		s.refusedWith(t, refreshing(string(changed), "dr_x"), "invalid_client")
		time.Sleep(89 * 24 * time.Hour)
		commontest.EqualIn(t, "after 89 days", http.StatusOK, begin(id))
		time.Sleep(2 * 24 * time.Hour)
		commontest.EqualIn(t, "after 91 days", http.StatusBadRequest, begin(id))
		s.refusedWith(t, refreshing(id, "dr_x"), "invalid_client")
	})
}

func TestARegistrationIsAnsweredAsItWasTaken(t *testing.T) {
	s := newSite(t, storetest.SQLite, nil)
	got := answer(t, s.json("/register", map[string]any{
		"client_name": "X\u202e\n" + strings.Repeat("y", 100), "redirect_uris": []string{callback}, "grant_types": []string{"implicit"}, "scope": "everything", "application_type": "native",
	}))
	for name, want := range map[string]string{
		"token_endpoint_auth_method": "none", "grant_types": "[authorization_code refresh_token]", "response_types": "[code]", "scope": "<nil>", "client_secret": "<nil>",
		"redirect_uris": "[" + callback + "]", "application_type": "native",
	} {
		t.Run(name, func(t *testing.T) {
			if fmt.Sprint(got[name]) != want {
				t.Errorf("%s is %v, want %s", name, got[name], want)
			}
		})
	}
	for body, want := range map[string]string{
		`{`: "invalid_client_metadata", `[]`: "invalid_client_metadata", `{"redirect_uris":[]}`: "invalid_redirect_uri", `{}`: "invalid_redirect_uri",
		`{"redirect_uris":["https://a.example/"],"token_endpoint_auth_method":"private_key_jwt"}`:          "invalid_client_metadata",
		`{"redirect_uris":[` + strings.TrimSuffix(strings.Repeat(`"https://a.example/",`, 11), ",") + `]}`: "invalid_redirect_uri",
	} {
		res := s.post("/register", body)
		if got := answer(t, res); res.StatusCode != http.StatusBadRequest || got["error"] != want {
			t.Errorf("%s: %s %v", body, res.Status, got)
		}
	}
	if res := s.post("/register", `{"redirect_uris":["`+strings.Repeat("x", 70<<10)+`"]}`); res.StatusCode != http.StatusBadRequest {
		t.Error("a body of 70 KiB:", res.Status)
	}
}

func TestClientsOfTheSettings(t *testing.T) {
	s := newSite(t, storetest.SQLite, func(c *authserver.Config) {
		c.Clients = map[string]resourceserver.Client{"mine": {Name: "Mine", RedirectURIs: []string{callback}, Secret: "s3cret"}, "public": {RedirectURIs: []string{callback}}}
	})
	verifier, challenge := pkce()
	for id, secret := range map[string]string{"mine": "s3cret", "public": ""} {
		t.Run(id, func(t *testing.T) {
			q := s.browser().signIn(at+"/authorize?"+request(id, challenge).Encode(), "ada", "")
			f := url.Values{"grant_type": {"authorization_code"}, "code": {q.Get("code")}, "redirect_uri": {callback}, "client_id": {id}, "code_verifier": {verifier}}
			s.refusedWith(t, with(f, "client_secret", "wrong"), "invalid_client")
			if secret != "" {
				s.refusedWith(t, f, "invalid_client")
			}
			if status, got := s.token(with(f, "client_secret", secret)); status != http.StatusOK {
				t.Error(id, status, got)
			}
		})
	}
}

// A consent is for one client, at one host, for one server and its scopes, and comes
// before everything else.
func TestConsentComesFirst(t *testing.T) {
	one(t, func(t *testing.T, s *site) {
		client, other := s.register(callback, "https://client.example/cb", "https://elsewhere.example/cb", "com.example.app:/cb"), s.register("https://client.example/cb")
		_, challenge := pkce()
		b := s.browser()
		asks := func(name string, q url.Values, want bool) {
			t.Helper()
			res := b.open(http.MethodGet, at+"/authorize?"+q.Encode(), nil)
			if (res.StatusCode == http.StatusOK) != want {
				t.Errorf("%s: %s, want a page: %v", name, res.Status, want)
			}
		}
		local := request(client, challenge)
		first := with(local, "redirect_uri", "https://client.example/cb")
		res := b.open(http.MethodGet, at+"/authorize?"+local.Encode(), nil)
		page := text(t, res)
		for _, part := range []string{"<b>Test client</b>", "<b>files</b>", "<b>127.0.0.1</b>", "has given its name itself", "program on the computer"} {
			if !strings.Contains(page, part) {
				t.Errorf("the page does not say %q:\n%s", part, page)
			}
		}
		for _, c := range res.cookies {
			if strings.HasPrefix(c.Name, "dm_flow") {
				t.Error("a sign-in was begun before the consent")
			}
		}
		asks("again, without an answer", first, true)
		b.signIn(at+"/authorize?"+first.Encode(), "ada", "")
		asks("again, with the answer", first, false)
		asks("fewer scopes", with(first, "scope", ""), false)
		asks("more scopes", with(first, "scope", "files:write"), true)
		asks("another server", with(first, "resource", at+"/other/mcp"), true)
		asks("another client", with(first, "client_id", other), true)
		asks("another host", with(first, "redirect_uri", "https://elsewhere.example/cb"), true)
		asks("the page is wanted", with(first, "prompt", "consent"), true)
		asks("no page is wanted", with(first, "prompt", "none"), false)
		if q := s.browser().open(http.MethodGet, at+"/authorize?"+with(first, "prompt", "none").Encode(), nil); !strings.Contains(q.Header.Get("Location"), "error=interaction_required") {
			t.Error("no page is wanted, and there is no consent:", q.Header)
		}
		// Any program of the user's machine may be behind the next port of loopback, or have
		// claimed the scheme (RFC 8252 §8.6), so such a consent is not remembered.
		for _, redirect := range []string{callback, "com.example.app:/cb"} {
			program := with(local, "redirect_uri", redirect)
			b.signIn(at+"/authorize?"+program.Encode(), "ada", "")
			asks("a program, with the answer of before: "+redirect, program, true)
		}
		f := fields(text(t, s.browser().open(http.MethodGet, at+"/authorize?"+local.Encode(), nil)))
		f.Set("answer", "deny")
		refuser := s.browser()
		f = fields(text(t, refuser.open(http.MethodGet, at+"/authorize?"+local.Encode(), nil)))
		if to := refuser.open(http.MethodPost, at+"/authorize", f).Header.Get("Location"); !strings.HasPrefix(to, callback) || !strings.Contains(to, "error=access_denied") {
			t.Error("a refusal leads to", to)
		}
	})
}

func TestTheCallbackIsForTheBrowserThatBegan(t *testing.T) {
	one(t, func(t *testing.T, s *site) {
		client := s.register(callback)
		_, challenge := pkce()
		b := s.browser()
		login := b.begin(at + "/authorize?" + request(client, challenge).Encode())
		f := fields(text(t, b.open(http.MethodGet, login, nil)))
		f.Set("name", "ada")
		to := b.open(http.MethodPost, at+"/login", f).Header.Get("Location")
		refused := func(name string, b *browser, to string) {
			t.Helper()
			if res := b.open(http.MethodGet, to, nil); res.StatusCode != http.StatusBadRequest || res.Header.Get("Location") != "" {
				t.Errorf("%s: %s %v", name, res.Status, res.Header)
			}
		}
		refused("no cookie", s.browser(), to)
		other := s.browser()
		other.begin(at + "/authorize?" + request(client, challenge).Encode())
		refused("the cookie of another flow", other, to)
		refused("no state", b, at+"/callback?code=x")
		refused("another state", b, strings.Replace(to, "state=", "state=A", 1))
		if res := b.open(http.MethodGet, to, nil); res.StatusCode != http.StatusSeeOther {
			t.Fatal(res.Status)
		}
		refused("twice", b, to)
	})
}

func TestTheConsentPageCannotBeForged(t *testing.T) {
	one(t, func(t *testing.T, s *site) {
		client := s.register(callback)
		_, challenge := pkce()
		b, other := s.browser(), s.browser()
		res := b.open(http.MethodGet, at+"/authorize?"+request(client, challenge).Encode(), nil)
		for name, want := range map[string]string{
			"X-Frame-Options": "DENY", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
			"Content-Security-Policy": "default-src 'none'; style-src 'nonce-", "Content-Type": "text/html; charset=utf-8", "Access-Control-Allow-Origin": "",
			// This header would cut off a client in a web page from the window that it
			// has opened for the sign-in.
			"Cross-Origin-Opener-Policy": "",
		} {
			if got := res.Header.Get(name); !strings.HasPrefix(got, want) || want == "" && got != "" {
				t.Errorf("%s is %q", name, got)
			}
		}
		if csp := res.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "frame-ancestors 'none'") || !strings.Contains(csp, "form-action 'self'") {
			t.Error(csp)
		}
		f := fields(text(t, res))
		f.Set("answer", "allow")
		theirs := fields(text(t, other.open(http.MethodGet, at+"/authorize?"+request(client, challenge).Encode(), nil)))
		for name, attempt := range map[string]func() *reply{
			"no cookie": func() *reply { return s.browser().open(http.MethodPost, at+"/authorize", f) },
			"another's page": func() *reply {
				return b.open(http.MethodPost, at+"/authorize", with(f, "request", theirs.Get("request")))
			},
			"no request": func() *reply { return b.open(http.MethodPost, at+"/authorize", with(f, "request", "")) },
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
		if got := b.open(http.MethodPost, at+"/authorize", f); got.StatusCode != http.StatusSeeOther {
			t.Error("the page itself:", got.Status)
		}
	})
}

// The page says in words what a client can do, in whose name and for how long.
func TestTheConsentPageSaysWhatIsAllowed(t *testing.T) {
	s := newSite(t, storetest.SQLite, func(c *authserver.Config) {
		c.Groups = map[string][]string{"/mcp": {"files", "sheets"}}
	})
	_, challenge := pkce()
	for name, c := range map[string]struct {
		scope, resource string
		says            []string
		not             string
	}{
		"a server":       {"", "/files/mcp", []string{"the server <b>files</b>", "call every tool that you may call", "Yours. You sign in next.", "90 days at most"}, "write_*"},
		"a scope":        {"mcp files:write", "/files/mcp", []string{"Call these tools of files, too: write_* (<code>files:write</code>)"}, "several servers"},
		"all servers":    {"files:write", "/mcp", []string{"Use these servers: files", "write_*"}, "the server <b>"},
		"another scope":  {"read:everything", "/files/mcp", []string{"call every tool"}, "read:everything"},
		"no server, yet": {"", "", []string{"a server", "<select name=\"server\">"}, "the server <b>"},
	} {
		t.Run(name, func(t *testing.T) {
			q := with(request(s.register(callback), challenge), "scope", c.scope)
			q.Del("resource")
			if c.resource != "" {
				q.Set("resource", at+c.resource)
			}
			page := text(t, s.browser().open(http.MethodGet, at+"/authorize?"+q.Encode(), nil))
			for _, says := range c.says {
				if !strings.Contains(page, says) {
					t.Errorf("the page lacks %s:\n%s", says, page)
				}
			}
			if strings.Contains(page, c.not) {
				t.Errorf("the page says %s:\n%s", c.not, page)
			}
		})
	}
}

func TestCookiesAreTiedToTheHost(t *testing.T) {
	s := newSite(t, storetest.SQLite, func(c *authserver.Config) {
		c.PublicURL, c.Issuer, c.ClientID, c.Login = "https://mcp.example.com", "https://login.example.com", "us", fixed{"sub": "ada"}
	})
	_, challenge := pkce()
	id := answer(t, s.json("/register", map[string]any{"redirect_uris": []string{callback}}))["client_id"].(string)
	q := request(id, challenge, "resource", "https://mcp.example.com/files/mcp")
	res := s.browser().open(http.MethodGet, "https://mcp.example.com/authorize?"+q.Encode(), nil)
	if len(res.cookies) != 1 {
		t.Fatal(res.Status, res.cookies)
	}
	c := res.cookies[0]
	if !strings.HasPrefix(c.Name, "__Host-") || !c.Secure || !c.HttpOnly || c.Path != "/" || c.Domain != "" || c.SameSite != http.SameSiteLaxMode {
		t.Errorf("%+v", c)
	}
}

func TestNamesAreEscaped(t *testing.T) {
	s := newSite(t, storetest.SQLite, nil)
	doc := answer(t, s.json("/register", map[string]any{"client_name": `<script>x</script>"'`, "redirect_uris": []string{callback}}))
	_, challenge := pkce()
	page := text(t, s.browser().open(http.MethodGet, at+"/authorize?"+request(doc["client_id"].(string), challenge).Encode(), nil))
	if strings.Contains(page, "<script>") || !strings.Contains(page, "&lt;script&gt;") {
		t.Error(page)
	}
	page = text(t, s.browser().open(http.MethodGet, at+`/login?state="><script>x`, nil))
	if strings.Contains(page, "<script>") {
		t.Error(page)
	}
}

// A browser follows a form only to addresses that the policy of the page names, and so
// with all redirects after it. Both forms lead to the client in the end.
func TestThePolicyOfEachFormAllowsTheWayToTheClient(t *testing.T) {
	for redirect, source := range map[string]string{
		"http://127.0.0.1:4000/done": "http://127.0.0.1:4000", "http://localhost:4000/done": "http://localhost:4000",
		"cursor://anysphere.cursor-mcp/oauth/callback": "cursor:", "https://client.example/done": "https:",
	} {
		t.Run(redirect, func(t *testing.T) {
			s := newSite(t, storetest.SQLite, nil)
			b := s.browser()
			_, challenge := pkce()
			ask := at + "/authorize?" + request(s.register(redirect), challenge, "redirect_uri", redirect).Encode()
			for name, page := range map[string]*reply{"consent": s.browser().open(http.MethodGet, ask, nil), "sign-in": b.open(http.MethodGet, b.begin(ask), nil)} {
				_, actions, _ := strings.Cut(page.Header.Get("Content-Security-Policy"), "form-action ")
				actions, _, _ = strings.Cut(actions, ";")
				if !slices.Contains(strings.Fields(actions), source) {
					t.Errorf("the page for %s allows only %q, not the way to %s", name, actions, redirect)
				}
			}
		})
	}
}

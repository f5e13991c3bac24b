package authserver_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/access/authserver"
	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/store/storetest"
)

// claude is the redirect URI of Claude's desktop program.
const claude = "claude://claude.ai/mcp-auth-callback/sdk"

func TestAProgramSignsInWithItsOwnScheme(t *testing.T) {
	storetest.One(t, func(t *testing.T, open storetest.Open) {
		for _, redirect := range []string{claude, "com.example.app:/cb"} {
			s := newSite(t, open, nil)
			client := s.register(redirect)
			verifier, challenge := pkce()
			q := request(client, challenge, "redirect_uri", redirect)
			scheme, rest, _ := strings.Cut(redirect, ":")
			b := s.browser()
			res := b.open(http.MethodGet, at+"/authorize?"+q.Encode(), nil)
			page := text(t, res)
			if !strings.Contains(page, "<b>"+scheme+":") || !strings.Contains(page, "program on the computer") {
				t.Errorf("the page does not say that the answer goes to a program: %s", page)
			}
			if csp := res.Header.Get("Content-Security-Policy"); !strings.Contains(csp, " "+scheme+":;") {
				t.Errorf("the form cannot lead to %s: %s", scheme, csp)
			}
			for _, other := range []string{redirect + "/", redirect + "?a=b", scheme + ":" + strings.ToUpper(rest), "x" + redirect} {
				if res := b.open(http.MethodGet, at+"/authorize?"+with(q, "redirect_uri", other).Encode(), nil); res.StatusCode != http.StatusBadRequest || res.Header.Get("Location") != "" {
					t.Errorf("%s for a client with %s: %s", other, redirect, res.Status)
				}
			}
			for _, wrong := range []url.Values{with(q, "code_challenge_method", "plain"), with(q, "code_challenge", "", "code_challenge_method", "")} {
				if to := b.open(http.MethodGet, at+"/authorize?"+wrong.Encode(), nil).Header.Get("Location"); !strings.HasPrefix(to, redirect+"?") || !strings.Contains(to, "error=invalid_request") {
					t.Errorf("without S256: %s", to)
				}
			}
			code := b.signIn(at+"/authorize?"+q.Encode(), "ada", "").Get("code")
			status, got := s.token(url.Values{"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {redirect}, "client_id": {client}, "code_verifier": {verifier}})
			if status != http.StatusOK || !s.good(got["access_token"].(string), "files") {
				t.Error(redirect, status, got)
			}
		}
	})
}

func TestARegistrationKeepsWhatCanBeUsed(t *testing.T) {
	one(t, func(t *testing.T, s *site) {
		given := []string{"javascript:alert(1)", callback, "http://client.example/cb", claude}
		for method, want := range map[string][]string{"none": {callback, claude}, "client_secret_post": {callback}} {
			res := s.json("/register", map[string]any{"redirect_uris": given, "token_endpoint_auth_method": method})
			got := answer(t, res)
			if res.StatusCode != http.StatusCreated || fmt.Sprint(got["redirect_uris"]) != fmt.Sprint(want) {
				t.Errorf("%s: %s %v, want %v", method, res.Status, got["redirect_uris"], want)
			}
			id, _ := got["client_id"].(string)
			_, challenge := pkce()
			for _, uri := range given {
				kept := strings.Contains(fmt.Sprint(want), uri)
				if res := s.browser().open(http.MethodGet, at+"/authorize?"+request(id, challenge, "redirect_uri", uri).Encode(), nil); (res.StatusCode == http.StatusOK) != kept {
					t.Errorf("%s of a client with %s: %s", uri, method, res.Status)
				}
			}
		}
		res := s.json("/register", map[string]any{"redirect_uris": []string{"javascript:alert(1)", "http://client.example/\"cb", "https://ada:hunter2@client.example/", ""}})
		got := answer(t, res)
		if res.StatusCode != http.StatusBadRequest || got["error"] != "invalid_redirect_uri" {
			t.Fatal(res.Status, got)
		}
		said := got["error_description"].(string)
		for _, part := range []string{"javascript:alert(1): its scheme", "http://client.example/?cb: it cannot be read", "https://client.example/: it has a user name", "an empty one: it is empty"} {
			if !strings.Contains(said, part) {
				t.Errorf("%q does not say %q", said, part)
			}
		}
		if strings.Contains(said, "hunter2") {
			t.Error("a password is repeated:", said)
		}
	})
}

func TestADocumentNamesWhatCannotBeUsed(t *testing.T) {
	storetest.One(t, func(t *testing.T, open storetest.Open) {
		for _, c := range []struct {
			uris []string
			uri  string
			says string // "" if the page asks the user
		}{
			{[]string{"data:text/html,x", claude}, claude, ""},
			{[]string{"data:text/html,x", "http://client.example/"}, claude, "http://client.example/: it is http and not on loopback"},
		} {
			s, w := documented(t, open)
			w.answer = func(*http.Request) (int, http.Header, string, error) {
				return http.StatusOK, http.Header{}, doc(clientURL, map[string]any{"redirect_uris": c.uris}), nil
			}
			_, challenge := pkce()
			res := s.browser().open(http.MethodGet, at+"/authorize?"+request(clientURL, challenge, "redirect_uri", c.uri).Encode(), nil)
			if page := text(t, res); (res.StatusCode == http.StatusOK) != (c.says == "") || !strings.Contains(page, c.says) {
				t.Errorf("%v: %s %s", c.uris, res.Status, page)
			}
		}
	})
}

func TestClientsOfTheSettingsKeepWhatCanBeUsed(t *testing.T) {
	s := newSite(t, storetest.SQLite, func(c *authserver.Config) {
		c.Clients = map[string]resourceserver.Client{"mine": {Name: "Mine", RedirectURIs: []string{"file:///x", claude}}}
	})
	_, challenge := pkce()
	if res := s.browser().open(http.MethodGet, at+"/authorize?"+request("mine", challenge, "redirect_uri", claude).Encode(), nil); res.StatusCode != http.StatusOK {
		t.Error(res.Status, text(t, res))
	}
	commontest.Contains(t, "nothing says that a redirect URI of the settings is not used", "file:///x", s.log.String())
	for name, c := range map[string]resourceserver.Client{"none can": {RedirectURIs: []string{"file:///x", "http://client.example/"}}, "with a secret": {RedirectURIs: []string{claude}, Secret: "s3cret"}} {
		t.Run(name, func(t *testing.T) {
			s.config.Clients = map[string]resourceserver.Client{"mine": c}
			_, err := authserver.New(s.config)
			if err == nil {
				t.Errorf("%s: there is a broker", name)
				return
			}
			for _, uri := range c.RedirectURIs {
				if !strings.Contains(err.Error(), "access: client mine: ") || !strings.Contains(err.Error(), uri+": it") {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

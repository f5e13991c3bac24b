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
)

// claude is the redirect URI of Claude's desktop program.
const claude = "claude://claude.ai/mcp-auth-callback/sdk"

func TestAProgramSignsInWithItsOwnScheme(t *testing.T) {
	for _, redirect := range []string{claude, "com.example.app:/cb"} {
		s := newSite(t, nil)
		client := s.register(redirect)
		q := request(client, "redirect_uri", redirect)
		scheme, rest, _ := strings.Cut(redirect, ":")
		b := s.browser()
		page := text(t, b.get(ask(q)))
		if !strings.Contains(page, "<b>"+scheme+":") || !strings.Contains(page, "program on the computer") {
			t.Errorf("the page does not say that the answer goes to a program: %s", page)
		}
		for _, other := range []string{redirect + "/", redirect + "?a=b", scheme + ":" + strings.ToUpper(rest), "x" + redirect} {
			s.wantPage(other, b.get(ask(with(q, "redirect_uri", other))))
		}
		for _, wrong := range []url.Values{with(q, "code_challenge_method", "plain"), with(q, "code_challenge", "", "code_challenge_method", "")} {
			if to := b.get(ask(wrong)).Header.Get("Location"); !strings.HasPrefix(to, redirect+"?") || !strings.Contains(to, "error=invalid_request") {
				t.Errorf("without S256: %s", to)
			}
		}
		code := b.signIn(ask(q), "ada", "").Get("code")
		status, got := s.token(redeeming(client, code, "redirect_uri", redirect))
		if status != http.StatusOK || !s.good(got["access_token"].(string), "files") {
			t.Error(redirect, status, got)
		}
	}
}

func TestARegistrationKeepsWhatCanBeUsed(t *testing.T) {
	s := newSite(t, nil)
	given := []string{"javascript:alert(1)", callback, "http://client.example/cb", claude}
	for method, want := range map[string][]string{"none": {callback, claude}, "client_secret_post": {callback}} {
		res := s.json("/register", map[string]any{"redirect_uris": given, "token_endpoint_auth_method": method})
		got := answer(t, res)
		if res.StatusCode != http.StatusCreated || fmt.Sprint(got["redirect_uris"]) != fmt.Sprint(want) {
			t.Errorf("%s: %s %v, want %v", method, res.Status, got["redirect_uris"], want)
		}
		id, _ := got["client_id"].(string)
		for _, uri := range given {
			kept := strings.Contains(fmt.Sprint(want), uri)
			if res := s.get(ask(request(id, "redirect_uri", uri))); (res.StatusCode == http.StatusOK) != kept {
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
	for _, uri := range []string{"javascript:alert(1)", "http://client.example/?cb", "https://client.example/", "an empty one"} {
		commontest.Contains(t, "the refusal", uri+": it", said)
	}
	if strings.Contains(said, "hunter2") {
		t.Error("a password is repeated:", said)
	}
}

func TestADocumentNamesWhatCannotBeUsed(t *testing.T) {
	for _, c := range []struct {
		uris []string
		uri  string
		says string // "" if the page asks the user
	}{
		{[]string{"data:text/html,x", claude}, claude, ""},
		{[]string{"data:text/html,x", "http://client.example/"}, claude, "http://client.example/: it is http and not on loopback"},
	} {
		s, w := documented(t)
		w.answer = func(*http.Request) (int, http.Header, string, error) {
			return http.StatusOK, http.Header{}, doc(clientURL, map[string]any{"redirect_uris": c.uris}), nil
		}
		res := s.get(ask(request(clientURL, "redirect_uri", c.uri)))
		if page := text(t, res); (res.StatusCode == http.StatusOK) != (c.says == "") || !strings.Contains(page, c.says) {
			t.Errorf("%v: %s %s", c.uris, res.Status, page)
		}
	}
}

func TestClientsOfTheSettingsKeepWhatCanBeUsed(t *testing.T) {
	s := newSite(t, func(c *authserver.Config) {
		c.Clients = map[string]resourceserver.Client{"mine": {Name: "Mine", RedirectURIs: []string{"file:///x", claude}}}
	})
	if res := s.get(ask(request("mine", "redirect_uri", claude))); res.StatusCode != http.StatusOK {
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

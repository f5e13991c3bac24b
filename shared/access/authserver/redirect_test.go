package authserver_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/access/authserver"
	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

const claude = "claude://claude.ai/mcp-auth-callback/sdk"

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
			commontest.EqualIn(t, uri+" of a client with "+method, kept, s.get(ask(request(id, "redirect_uri", uri))).StatusCode == http.StatusOK)
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

func TestClientsOfTheSettingsKeepWhatCanBeUsed(t *testing.T) {
	s := newSite(t, func(c *authserver.Config) {
		c.Clients = map[string]resourceserver.Client{"mine": {Name: "Mine", RedirectURIs: []string{"file:///x", claude}}}
	})
	commontest.Equal(t, http.StatusOK, s.get(ask(request("mine", "redirect_uri", claude))).StatusCode)
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

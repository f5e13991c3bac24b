package credentials_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/credentials"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func TestThePageRefusesWhatItDidNotMake(t *testing.T) {
	s := newSite(t, nil)
	b := s.browser()
	page := b.identified("/connect?server=issues", "ada")
	good := with(fields(page.body, "notes"), "action", "connect", "secret", "x")
	asks, err := storage.NewSealer("upstream ask", s.secret)
	commontest.OK(t, err)
	ask := func(until time.Time) string {
		text, err := json.Marshal(credentials.Asked{Tenant: "acme", Principal: "ada", Server: "issues", Provider: "notes", Until: until.Unix()})
		commontest.OK(t, err)
		return asks.Seal(text)
	}
	for name, form := range map[string]url.Values{
		"no CSRF value": with(good, "csrf", ""), "a foreign CSRF value": with(good, "csrf", strings.Repeat("A", 22)),
		"a provider of another server": with(good, "provider", "jira"), "a changed link": with(good, "e", "x"), "an old link": with(good, "e", ask(time.Now().Add(-time.Minute))),
		"no value": with(good, "secret", ""),
	} {
		commontest.EqualIn(t, name, http.StatusBadRequest, b.open("/connect", form).status)
	}
	commontest.EqualIn(t, "a server that uses nothing", http.StatusNotFound, b.open("/connect", with(good, "server", "plain")).status)
	commontest.EqualIn(t, "secrets that were stored", 0, len(s.values("ada")))
	if res := b.open("/connect", with(good, "e", ask(time.Now().Add(time.Hour)))); res.status >= http.StatusBadRequest {
		t.Errorf("a link that is good: %d %s", res.status, res.body)
	}
	h := page.header
	if !strings.Contains(h.Get("Content-Security-Policy"), "frame-ancestors 'none'") || h.Get("X-Frame-Options") != "DENY" || h.Get("Cache-Control") != "no-store" {
		t.Errorf("headers %v", h)
	}
}

func TestATicketIsForItsServerAndWorksOnce(t *testing.T) {
	s := newSite(t, nil)
	s.servers["other"] = []string{"notes"}
	ticket := s.ticket("ada")
	for i, want := range []int{http.StatusOK, http.StatusForbidden} {
		b := s.browser()
		res := b.follow("/connect", with(fields(b.follow("/connect?server=issues", nil).body, ""), "ticket", ticket))
		commontest.EqualIn(t, fmt.Sprint("time ", i+1), want, res.status)
		commontest.Contains(t, "another server asks who this is", `name="ticket"`, b.follow("/connect?server=other", nil).body)
	}
}

func TestAForeignNameIsRefusedOnLoopback(t *testing.T) {
	s := newSite(t, nil)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://evil.example/connect?server=issues", nil)
	res, _ := serve(s.pages(), r)
	commontest.Equal(t, http.StatusForbidden, res.status)
}

// signedIn is a SignIn that trusts the cookie "name" of the browser.
type signedIn struct{}

func (signedIn) Visitor(r *http.Request, _ string) (storage.Identity, bool) {
	c, err := r.Cookie("name")
	if err != nil {
		return storage.Identity{}, false
	}
	return storage.Identity{Tenant: "acme", Principal: c.Value}, true
}

func (signedIn) Visit(w http.ResponseWriter, r *http.Request, server, back string) error {
	http.SetCookie(w, &http.Cookie{Name: "name", Value: "ada", Path: "/"})
	http.Redirect(w, r, back, http.StatusSeeOther)
	return nil
}

func TestProvidersThatAreWrongAreRefused(t *testing.T) {
	for _, section := range []string{
		`[]`,
		`{"a":{"authorize":"https://a.example"}}`,
		`{"a":{"authorize":"https://a.example","token":"http://a.example/t","client_id":"c"}}`,
		`{"a":{"authorize":"https://a.example","token":"https://a.example/t"}}`,
		`{"a":{"authorize":"https://a.example","token":"https://a.example/t","client_id":"c","client_secret":"${X}"}}`,
		`{"a":{"authorise":"https://a.example"}}`,
		`{"a":{"scopes":"repo"}}`,
		`{"a":{"exchange":{"audience":"x"}}}`,
		`{"a":{"token":"https://a.example/t","client_id":"c","exchange":{}}}`,
		`{"a":{"token":"https://a.example/t","exchange":{"audience":"x"}}}`,
		`{"a":{"authorize":"https://a.example","token":"https://a.example/t","client_id":"c","exchange":{"audience":"x"}}}`,
	} {
		if all, err := credentials.ReadProviders([]byte(section), nil); err == nil {
			t.Errorf("%s is taken as %v", section, all)
		}
	}
	const variable = `{"a":{"authorize":"https://a.example","token":"https://a.example/t","client_id":"c","client_secret":"${X}"}}`
	if all, err := credentials.ReadProviders([]byte(variable), map[string]string{"a": "word", "b": "other"}); err != nil || all["a"].ClientSecret != "word" || len(all) != 1 {
		t.Errorf("a secret that is given apart: %v, %v", all, err)
	}
}

// FuzzConnectPages sends requests to the pages: a GET of the text, or a POST with it. Each must be
// answered without a 5xx, and none may lead to another host.
func FuzzConnectPages(f *testing.F) {
	const csrf = "AAAAAAAAAAAAAAAAAAAAAA"
	for _, query := range []string{"server=issues&e=x", "server=issues&server=plain&e=%zz", "code=x&state=y&iss=z", "error=access_denied&state=x"} {
		f.Add(false, "/connect?"+query)
		f.Add(false, "/connected?"+query)
	}
	for _, form := range []string{"provider=notes&action=connect&secret=x", "provider=github&action=connect", "ticket=x"} {
		f.Add(true, "/connect?server=issues&csrf="+csrf+"&"+form)
	}
	store := storagetest.NewMemory()
	v, err := credentials.New(credentials.Config{Store: store, Secret: secret('a'), PublicURL: at, Providers: map[string]credentials.Provider{
		"github": {Authorize: at + "/third", Token: at + "/token", ClientID: "c"},
	}})
	commontest.OK(f, err)
	p, err := credentials.NewPages(credentials.PagesConfig{
		Vault: v, Secret: secret('a'), Everyone: &storage.Identity{Tenant: "acme", Principal: "ada"},
		Providers: func(server string) ([]string, bool) { return []string{"github", "notes"}, server == "issues" },
	})
	commontest.OK(f, err)
	f.Fuzz(func(t *testing.T, post bool, text string) {
		path, query, _ := strings.Cut(text, "?")
		r := &http.Request{Method: http.MethodGet, URL: &url.URL{Path: path, RawQuery: query}, Header: http.Header{"Cookie": {query}}, Body: http.NoBody}
		if post {
			r = httptest.NewRequestWithContext(t.Context(), http.MethodPost, at+"/connect", strings.NewReader(query))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Header.Set("Cookie", "dm_connect_csrf="+csrf)
		}
		r.Host = strings.TrimPrefix(at, "http://")
		res, _ := serve(p, r)
		if res.status >= http.StatusInternalServerError {
			t.Errorf("%d %s", res.status, res.body)
		}
		if to := res.header.Get("Location"); to != "" && !strings.HasPrefix(to, at+"/third?") && !strings.HasPrefix(to, "/connect?") {
			t.Errorf("sent to %q", to)
		}
	})
}

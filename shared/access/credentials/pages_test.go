package credentials_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
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
	page := b.identified("/issues/connect", "ada")
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
	ticket := s.ticket("ada")
	for i, want := range []int{http.StatusOK, http.StatusForbidden} {
		b := s.browser()
		res := b.follow("/connect", with(fields(b.follow("/issues/connect", nil).body, ""), "ticket", ticket))
		commontest.EqualIn(t, fmt.Sprint("time ", i+1), want, res.status)
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
	for section, want := range map[string]string{
		`{"a":{"authorize":"https://a.example"}}`:                                                                      "authorize and token go together",
		`{"a":{"authorize":"https://a.example","token":"http://a.example/t","client_id":"c"}}`:                         "token must be an https URL",
		`{"a":{"authorize":"https://a.example","token":"https://a.example/t"}}`:                                        "client_id is not set",
		`{"a":{"authorize":"https://a.example","token":"https://a.example/t","client_id":"c","client_secret":"${X}"}}`: "client_secret has a variable that is not set",
		`{"a":{"authorise":"https://a.example"}}`:                                                                      "authorise",
		`{"a":{"scopes":"repo"}}`:                                                                                      "scopes",
		`[]`:                                                                                                           "x-dormouse.connect",
		`{"a":{"exchange":"https://a.example/t"}}`:                                                                     "exchange",
		`{"a":{"exchange":{"audience":"x"}}}`:                                                                          "exchange needs token",
		`{"a":{"token":"https://a.example/t","client_id":"c","exchange":{}}}`:                                          "set audience or resource",
		`{"a":{"token":"https://a.example/t","exchange":{"audience":"x"}}}`:                                            "client_id is not set",
		`{"a":{"token":"http://a.example/t","client_id":"c","exchange":{"audience":"x"}}}`:                             "token must be an https URL",
		`{"a":{"authorize":"https://a.example","token":"https://a.example/t","client_id":"c","exchange":{"audience":"x"}}}`: "exclude each other",
		`{"a":{"token":"https://a.example/t","client_id":"c","exchange":{"audiense":"x"}}}`:                                 "audiense",
		`{"a":{"token":"https://a.example/t","client_id":"c","client_secret":"${SECRET}","exchange":{"audience":"x"}}}`:     "client_secret has a variable that is not set",
	} {
		if _, err := credentials.ReadProviders([]byte(section), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", section, err)
		}
	}
	const variable = `{"a":{"authorize":"https://a.example","token":"https://a.example/t","client_id":"c","client_secret":"${X}"}}`
	if all, err := credentials.ReadProviders([]byte(variable), map[string]string{"a": "word", "b": "other"}); err != nil || all["a"].ClientSecret != "word" || len(all) != 1 {
		t.Errorf("a secret that is given apart: %v, %v", all, err)
	}
	if all, err := credentials.ReadProviders(nil, nil); err != nil || len(all) != 0 {
		t.Errorf("no section: %v", err)
	}
	all, err := credentials.ReadProviders([]byte(`{"a":{"token":"https://a.example/t","client_id":"c","scopes":["x"],"exchange":{}}}`), nil)
	if err != nil || all["a"].Exchange == nil || !slices.Equal(all["a"].Scopes, []string{"x"}) {
		t.Error(all, err)
	}
}

// fuzzed sends requests to the pages. Each must be answered without a 5xx, and none may
// lead to another host.
func fuzzed(f *testing.F, send func(text string) *http.Request) {
	store := storagetest.NewMemory()
	v, err := credentials.New(credentials.Config{Store: store, Secret: secret('a'), PublicURL: at, Providers: map[string]credentials.Provider{
		"github": {Authorize: at + "/third", Token: at + "/token", ClientID: "c"},
	}})
	commontest.OK(f, err)
	who := storage.Identity{Tenant: "acme", Principal: "ada"}
	p, err := credentials.NewPages(credentials.PagesConfig{
		Vault: v, Secret: secret('a'), Everyone: &who,
		Providers: func(server string) ([]string, bool) { return []string{"github", "notes"}, server == "issues" },
	})
	commontest.OK(f, err)
	f.Fuzz(func(t *testing.T, text string) {
		r := send(text)
		r.Host = strings.TrimPrefix(at, "http://")
		w := httptest.NewRecorder()
		p.ServeHTTP(w, r)
		res := w.Result()
		_ = res.Body.Close()
		if res.StatusCode >= http.StatusInternalServerError {
			t.Errorf("%d %s", res.StatusCode, w.Body)
		}
		if to := res.Header.Get("Location"); to != "" && !strings.HasPrefix(to, at+"/third?") && !strings.HasPrefix(to, "/connect?") {
			t.Errorf("sent to %q", to)
		}
	})
}

func FuzzConnectForm(f *testing.F) {
	const csrf = "AAAAAAAAAAAAAAAAAAAAAA"
	f.Add("server=issues&csrf=" + csrf + "&provider=notes&action=connect&secret=x")
	f.Add("server=issues&csrf=" + csrf + "&provider=github&action=connect")
	f.Add("server=issues&csrf=" + csrf + "&ticket=x")
	fuzzed(f, func(body string) *http.Request {
		r := httptest.NewRequest(http.MethodPost, at+"/connect", strings.NewReader(body)) //nolint:noctx // there is no test whose context it could have
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Cookie", "dm_connect_csrf="+csrf)
		return r
	})
}

func FuzzConnectPages(f *testing.F) {
	for _, query := range []string{"server=issues&e=x", "server=issues", "server=issues&server=plain&e=%zz", "code=x&state=y&iss=z", "error=access_denied&state=x"} {
		f.Add("/connect?" + query)
		f.Add("/connected?" + query)
	}
	fuzzed(f, func(text string) *http.Request {
		path, query, _ := strings.Cut(text, "?")
		return &http.Request{Method: http.MethodGet, URL: &url.URL{Path: path, RawQuery: query}, Header: http.Header{"Cookie": {query}}, Body: http.NoBody}
	})
}

type says struct {
	status int
	body   string
}

// RoundTrip implements http.RoundTripper.
func (s *says) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: s.status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(s.body))}, nil
}

// Whatever a token endpoint answers, an exchange gives a token, or says why there is none.
func FuzzTokenAnswer(f *testing.F) {
	f.Add(200, `{"access_token":"x","expires_in":3600}`)
	f.Add(200, `{"access_token":"x","expires_in":1e300,"refresh_token":"y"}`)
	f.Add(400, `{"error":"invalid_grant"}`)
	f.Add(400, `{"error":"invalid_target"}`)
	f.Add(503, `<html>`)
	answer := &says{}
	client := &http.Client{Transport: answer}
	f.Fuzz(func(t *testing.T, status int, body string) {
		answer.status, answer.body = 200+(status%400+400)%400, body
		v, err := credentials.New(credentials.Config{
			Store: storagetest.NewMemory(), Secret: secret('a'), PublicURL: at, SignsIn: true, Client: client,
			Providers: map[string]credentials.Provider{"crm": {Token: at + "/token", ClientID: "c", Exchange: &credentials.Exchange{Audience: "a"}}},
		})
		if err == nil {
			err = v.KeepSignIn(t.Context(), "acme", "ada", "own", "", time.Now().Add(time.Hour))
		}
		commontest.OK(t, err)
		has, missing, err := v.Get(t.Context(), "acme", "ada", []string{"crm"})
		if code := storage.CodeOf(err); err != nil && code != storage.Unavailable || err == nil && len(has)+len(missing) != 1 {
			t.Errorf("%d %q: %v, %v, %v", answer.status, body, has, missing, err)
		}
		if value := has["crm"].Value; value != "" && !strings.Contains(body, "access_token") && !strings.Contains(body, "\\u") && !strings.Contains(strings.ToLower(body), "acce") {
			t.Errorf("%q gives the token %q", body, value)
		}
	})
}

package authserver_test

import (
	"cmp"
	"encoding/json"
	"html"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/access/authserver"
	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
	"github.com/dormouse-mcp/dormouse/shared/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m, os.Getenv) }

// at is the public URL of a site. Its sign-in takes any name.
const at = "http://127.0.0.1:8787"

const callback = "http://127.0.0.1:5000/cb"

// site is an endpoint with a broker. A new broker serves each request, as in a function
// that has just started, unless the site is warm.
type site struct {
	warm   bool
	made   *authserver.Server // of a warm site
	t      *testing.T
	store  *storagetest.Counting
	config authserver.Config
	log    *commontest.Lines
	peer   string // the address of requests; "" for one on loopback
}

func secret(b byte) []byte { return []byte(strings.Repeat(string(rune('a'+b)), 32)) }

func newSite(t *testing.T, change func(*authserver.Config)) *site {
	t.Helper()
	return newSiteOn(t, storetest.SQLite, change)
}

func newSiteOn(t *testing.T, open storetest.Open, change func(*authserver.Config)) *site {
	t.Helper()
	s := &site{t: t, store: storagetest.NewCounting(open(t)), log: &commontest.Lines{}}
	s.config = authserver.Config{
		Settings: resourceserver.Settings{
			PublicURL: at, Issuer: at, Name: "dev", Claims: []string{"email"},
			Scopes: map[string]map[string][]string{"files": {"files:write": {"write_*"}}},
			Allow:  map[string]resourceserver.Rule{"closed": {Groups: []string{"admins"}}, "*": {Everyone: true}},
		},
		Servers: []string{"files", "other", "closed"}, Store: s.store, Keys: apikey.NewKeys(s.store), Secret: secret(0),
		Log: slog.New(slog.NewJSONHandler(s.log, nil)),
	}
	if change != nil {
		change(&s.config)
	}
	s.broker()
	return s
}

// each runs a test on each driver of the store, and inTime in virtual time.
func each(t *testing.T, test func(t *testing.T, s *site)) {
	t.Helper()
	storetest.Each(t, func(t *testing.T, open storetest.Open) { test(t, newSiteOn(t, open, nil)) })
}

func inTime(t *testing.T, test func(t *testing.T, s *site)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newSite(t, nil)) })
}

func (s *site) broker() *authserver.Server {
	s.t.Helper()
	if s.made != nil {
		return s.made
	}
	b, err := authserver.New(s.config)
	commontest.OK(s.t, err)
	if s.warm {
		s.made = b
	}
	return b
}

// issued returns a verifier of tokens, as a function that has just started makes it.
func (s *site) issued() *resourceserver.Issued {
	s.t.Helper()
	sealer, err := resourceserver.NewTokenSealer(s.config.Secret, s.config.Others...)
	commontest.OK(s.t, err)
	v, err := resourceserver.NewIssued(resourceserver.IssuedConfig{Settings: s.config.Settings, Servers: s.config.Servers, Sealer: sealer, Store: s.store, Keys: apikey.NewKeys(s.store)})
	commontest.OK(s.t, err)
	return v
}

func verify(t *testing.T, v *resourceserver.Issued, token, server string) (storage.Identity, error) {
	t.Helper()
	all, err := v.VerifyGroup(t.Context(), token, "", []string{server})
	return all[server], err
}

// still returns why a caller that was verified earlier may not use a server any more.
func still(t *testing.T, v *resourceserver.Issued, who storage.Identity, server string) error {
	t.Helper()
	_, err := v.ConfirmMembers(t.Context(), who.Credential, "", []string{server})
	return err
}

func (s *site) good(token, server string) bool {
	s.t.Helper()
	_, err := verify(s.t, s.issued(), token, server)
	if code := storage.CodeOf(err); err != nil && code != storage.Unauthenticated {
		s.t.Fatal(err)
	}
	return err == nil
}

// do sends a request. A form that is not nil makes it a POST.
func (s *site) do(method, target string, f url.Values, header http.Header) *reply {
	s.t.Helper()
	var body io.Reader
	if f != nil {
		body = strings.NewReader(f.Encode())
	}
	r := httptest.NewRequestWithContext(s.t.Context(), method, target, body)
	r.RemoteAddr = cmp.Or(s.peer, "127.0.0.1:50000")
	if strings.HasPrefix(target, "/") {
		r.Host = strings.SplitN(s.config.PublicURL, "//", 2)[1]
	}
	maps.Copy(r.Header, header)
	if f != nil && r.Header.Get("Content-Type") == "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	w := httptest.NewRecorder()
	s.broker().ServeHTTP(w, r)
	return replied(w)
}

type reply struct {
	StatusCode int
	Status     string
	Header     http.Header
	Body       io.Reader
	cookies    []*http.Cookie
}

func replied(w *httptest.ResponseRecorder) *reply {
	res := w.Result()
	defer func() { _ = res.Body.Close() }()
	return &reply{res.StatusCode, res.Status, res.Header, w.Body, res.Cookies()}
}

func answer(t *testing.T, res *reply) map[string]any {
	t.Helper()
	var v map[string]any
	commontest.OK(t, json.NewDecoder(res.Body).Decode(&v))
	return v
}

func text(t *testing.T, res *reply) string {
	t.Helper()
	all, err := io.ReadAll(res.Body)
	commontest.OK(t, err)
	return string(all)
}

func (s *site) register(uris ...string) string {
	s.t.Helper()
	res := s.json("/register", map[string]any{"client_name": "Test client", "redirect_uris": uris, "token_endpoint_auth_method": "none"})
	if res.StatusCode != http.StatusCreated {
		s.t.Fatal(res.Status, text(s.t, res))
	}
	return answer(s.t, res)["client_id"].(string)
}

func (s *site) json(path string, v any) *reply {
	s.t.Helper()
	body, err := json.Marshal(v)
	commontest.OK(s.t, err)
	return s.post(path, string(body))
}

func (s *site) post(path, body string) *reply {
	s.t.Helper()
	r := httptest.NewRequestWithContext(s.t.Context(), http.MethodPost, s.config.PublicURL+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	s.broker().ServeHTTP(w, r)
	return replied(w)
}

type browser struct {
	*site
	jar http.CookieJar
	// outside answers requests to other hosts with the next URL; nil: the browser stops there.
	outside func(*url.URL) string
}

func (s *site) browser() *browser {
	s.t.Helper()
	jar, err := cookiejar.New(nil)
	commontest.OK(s.t, err)
	return &browser{site: s, jar: jar}
}

// open sends a request with the browser's cookies, and follows no redirect.
func (b *browser) open(method, target string, f url.Values) *reply {
	b.t.Helper()
	u, err := url.Parse(target)
	commontest.OK(b.t, err)
	h, separator := http.Header{}, ""
	for _, c := range b.jar.Cookies(u) {
		h.Set("Cookie", h.Get("Cookie")+separator+c.Name+"="+c.Value)
		separator = "; "
	}
	if f != nil {
		h.Set("Origin", b.config.PublicURL)
	}
	res := b.do(method, target, f, h)
	b.jar.SetCookies(u, res.cookies)
	return res
}

func (b *browser) get(target string) *reply {
	b.t.Helper()
	return b.open(http.MethodGet, target, nil)
}

func (s *site) get(target string) *reply {
	s.t.Helper()
	return s.browser().get(target)
}

// refusal returns the error with which an authorization request is sent back to the client.
func (s *site) refusal(q url.Values) string {
	s.t.Helper()
	to, err := url.Parse(s.get(ask(q)).Header.Get("Location"))
	commontest.OK(s.t, err)
	return to.Query().Get("error")
}

func (s *site) wantPage(what string, res *reply) {
	s.t.Helper()
	if res.StatusCode != http.StatusBadRequest || res.Header.Get("Location") != "" {
		s.t.Errorf("%s: %s %v", what, res.Status, res.Header)
	}
}

// fields returns the hidden fields of the form in a page.
func fields(page string) url.Values {
	f := url.Values{}
	for _, m := range regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`).FindAllStringSubmatch(page, -1) {
		f.Set(m[1], html.UnescapeString(m[2]))
	}
	return f
}

// begin opens an authorization request, agrees, and returns where the sign-in is.
func (b *browser) begin(target string) string {
	b.t.Helper()
	res := b.get(target)
	if res.StatusCode == http.StatusOK {
		f := fields(text(b.t, res))
		f.Set("answer", "allow")
		f.Set("server", "files")
		res = b.open(http.MethodPost, b.config.PublicURL+"/authorize", f)
	}
	if res.StatusCode != http.StatusSeeOther {
		b.t.Fatal(res.Status, text(b.t, res))
	}
	return res.Header.Get("Location")
}

// signIn goes the whole way of an authorization request as a user with a name and
// groups, and returns the query with which the client is called back.
func (b *browser) signIn(target, name, groups string) url.Values {
	b.t.Helper()
	to := b.begin(target)
	if strings.HasPrefix(to, b.config.PublicURL+"/login") {
		f := fields(text(b.t, b.get(to)))
		f.Set("name", name)
		f.Set("groups", groups)
		to = b.open(http.MethodPost, b.config.PublicURL+"/login", f).Header.Get("Location")
	} else if b.outside != nil && !strings.HasPrefix(to, callback) {
		u, err := url.Parse(to)
		commontest.OK(b.t, err)
		to = b.outside(u)
	}
	if strings.HasPrefix(to, b.config.PublicURL+"/callback") {
		res := b.get(to)
		if to = res.Header.Get("Location"); to == "" {
			b.t.Fatal(res.Status, text(b.t, res))
		}
	}
	u, err := url.Parse(to)
	commontest.OK(b.t, err)
	return u.Query()
}

// verifier is the proof of possession of all requests, and challenge its hash.
const (
	verifier  = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
	challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
)

func ask(q url.Values) string { return at + "/authorize?" + q.Encode() }

// request returns the query of an authorization request for the server files, with
// changes; an empty value removes a parameter.
func request(client string, changes ...string) url.Values {
	q := url.Values{
		"response_type": {"code"}, "client_id": {client}, "redirect_uri": {callback}, "state": {"s&t=1"}, "code_challenge": {challenge},
		"code_challenge_method": {"S256"}, "resource": {at + "/files/mcp"}, "scope": {"mcp"},
	}
	return with(q, changes...)
}

// with returns a form with changes: names and values in turn. An empty value removes.
func with(q url.Values, changes ...string) url.Values {
	q = maps.Clone(q)
	for i := 0; i < len(changes); i += 2 {
		if q.Del(changes[i]); changes[i+1] != "" {
			q.Set(changes[i], changes[i+1])
		}
	}
	return q
}

type grant struct {
	client, code string
	form         url.Values // the request that redeems the code
}

// code signs ada in with a new browser, and returns the code.
func (s *site) code(changes ...string) grant {
	s.t.Helper()
	client := s.register(callback)
	q := s.browser().signIn(ask(request(client, changes...)), "ada", "eng")
	if q.Get("code") == "" {
		s.t.Fatal(q)
	}
	return grant{client, q.Get("code"), redeeming(client, q.Get("code"), "resource", at+"/files/mcp")}
}

func redeeming(client, code string, changes ...string) url.Values {
	return with(url.Values{
		"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {callback}, "client_id": {client}, "code_verifier": {verifier},
	}, changes...)
}

func (s *site) token(f url.Values) (int, map[string]any) {
	s.t.Helper()
	res := s.do(http.MethodPost, at+"/token", f, nil)
	commontest.EqualIn(s.t, "Cache-Control of /token is", "no-store", res.Header.Get("Cache-Control"))
	return res.StatusCode, answer(s.t, res)
}

func (s *site) granted(f url.Values) map[string]any {
	s.t.Helper()
	status, got := s.token(f)
	if status != http.StatusOK {
		s.t.Fatal(status, got)
	}
	return got
}

func (s *site) tokens(changes ...string) (client, access, refresh string) {
	s.t.Helper()
	g := s.code(changes...)
	got := s.granted(g.form)
	return g.client, got["access_token"].(string), got["refresh_token"].(string)
}

func (s *site) refusedWith(t *testing.T, f url.Values, code string) {
	t.Helper()
	if status, got := s.token(f); status != http.StatusBadRequest && status != http.StatusUnauthorized || got["error"] != code {
		t.Errorf("%d %v, want the error %s", status, got, code)
	}
}

func refreshing(client, token string) url.Values {
	return url.Values{"grant_type": {"refresh_token"}, "client_id": {client}, "refresh_token": {token}}
}

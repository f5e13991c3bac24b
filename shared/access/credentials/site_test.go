package credentials_test

import (
	"bytes"
	"context"
	"encoding/json"
	"html"
	"log/slog"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/access/credentials"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

const at = "http://127.0.0.1:8787"

// site is an endpoint with three servers. "issues" acts for its users at "github", by
// OAuth, and at "notes", by an API key. "deals" acts for them at "crm", by an exchange of
// their sign-in at the third party. "plain" needs no third party. Each request gets new
// handlers, as in a function that has just started.
type site struct {
	t       *testing.T
	store   *storagetest.Counting
	third   *third
	secret  []byte
	others  [][]byte
	box     *asleep
	log     *commontest.Lines
	signIn  credentials.SignIn // nil: users show a ticket, and nothing is exchanged
	told    []credentials.Asked
	servers map[string][]string
}

func secret(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }

func newSite(t *testing.T, inner storage.Store) *site {
	t.Helper()
	if inner == nil {
		inner = storagetest.NewMemory()
	}
	p := &third{}
	p.Server = httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.Close)
	return &site{
		t: t, store: storagetest.NewCounting(inner), third: p, secret: secret('a'), box: &asleep{}, log: &commontest.Lines{},
		servers: map[string][]string{"issues": {"github", "notes"}, "deals": {"crm"}, "plain": nil},
	}
}

func (s *site) logger() *slog.Logger { return slog.New(slog.NewJSONHandler(s.log, nil)) }

func (s *site) vault() *credentials.Vault {
	s.t.Helper()
	section, err := json.Marshal(map[string]any{
		"github": map[string]any{
			"title": "GitHub", "authorize": s.third.URL + "/authorize?x=1", "token": s.third.URL + "/token", "client_id": "c1", "client_secret": "third-secret", "scopes": []string{"repo", "user"}, "issuer": s.third.URL,
		},
		"crm": map[string]any{
			"title": "CRM", "token": s.third.URL + "/token", "client_id": "c1", "client_secret": "third-secret", "scopes": []string{"deals.read"}, "exchange": map[string]any{"audience": "crm-api", "resource": "https://crm.example"},
		},
	})
	commontest.OK(s.t, err)
	providers, err := credentials.ReadProviders(section, nil)
	commontest.OK(s.t, err)
	v, err := credentials.New(credentials.Config{Store: s.store, Providers: providers, Secret: s.secret, Others: s.others, PublicURL: at, SignsIn: s.signIn != nil, Log: s.logger()})
	commontest.OK(s.t, err)
	return v
}

func (s *site) pages() http.Handler {
	s.t.Helper()
	p, err := credentials.NewPages(credentials.PagesConfig{
		Vault: s.vault(), SignIn: s.signIn, Redeem: apikey.NewTickets(s.store).Redeem, Secret: s.secret, Others: s.others, Log: s.logger(),
		Providers: func(server string) ([]string, bool) { of, ok := s.servers[server]; return of, ok },
		Connected: func(ctx context.Context, a credentials.Asked) error {
			s.told = append(s.told, a)
			return sessions.Publisher{Store: s.store}.Visited(ctx, a.Session, a.ID, 0)
		},
	})
	commontest.OK(s.t, err)
	return p
}

func (s *site) endpoint() http.Handler {
	s.t.Helper()
	states, err := bridge.NewSealer(s.secret)
	commontest.OK(s.t, err)
	return transport.New(transport.Options{
		Servers: func(name string) (sessions.Server, bool) {
			of, ok := s.servers[name]
			return sessions.Server{Name: name, Digest: name, Record: true, Providers: of}, ok
		},
		Host: sessions.New(s.store, s.box, sessions.Limits{}).With(sessions.Parts{Secrets: s.vault()}), Auth: named{}, Sealer: states, Tickets: apikey.NewTickets(s.store), Observer: observe.Log(s.logger()),
	})
}

type named struct{ apikey.Open }

func (named) Members(r *http.Request, _ string, servers []string) (map[string]storage.Identity, error) {
	return apikey.Same(storage.Identity{Tenant: "acme", Principal: strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")}, servers), nil
}

// asleep is a Backend whose box is asleep. It records the deliveries that would wake the box.
type asleep struct {
	mu    sync.Mutex
	woken []sessions.Delivery
}

func (b *asleep) Deliver(_ context.Context, d sessions.Delivery, _ storage.Box) (sessions.Tracker, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.woken = append(b.woken, d)
	return nil, storage.Errorf(storage.Unavailable, "this box is not started")
}

func (b *asleep) Track(context.Context, storage.Session, storage.StreamID) (sessions.Tracker, error) {
	return nil, storage.NotFound
}
func (b *asleep) Answer(context.Context, storage.Answer, storage.Box) error { return nil }
func (b *asleep) End(context.Context, storage.Session, storage.Box) error   { return nil }

// third is a stand-in for a third party with OAuth.
type third struct {
	*httptest.Server
	mu       sync.Mutex
	asked    []url.Values  // of the token endpoint
	refuses  bool          // refresh tokens
	down     bool          // answers 503
	says     string        // the error of an exchange, "" for none
	slow     time.Duration // before each answer
	during   func()        // called during each request; nil for nothing
	serial   int
	verifier string // code_challenge of the last authorization
}

func (p *third) serve(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		panic(err)
	}
	p.mu.Lock()
	slow, during := p.slow, p.during
	p.mu.Unlock()
	if during != nil {
		during()
	}
	time.Sleep(slow) // as a slow network
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.URL.Path == "/authorize" {
		p.verifier = r.Form.Get("code_challenge")
		to := r.Form.Get("redirect_uri") + "?" + url.Values{"code": {"code1"}, "state": r.Form["state"]}.Encode()
		http.Redirect(w, r, to, http.StatusSeeOther)
		return
	}
	p.asked = append(p.asked, r.PostForm)
	w.Header().Set("Content-Type", "application/json")
	switch {
	case p.down:
		w.WriteHeader(http.StatusServiceUnavailable)
	case p.refuses, r.PostForm.Get("client_secret") != "third-secret", r.PostForm.Get("grant_type") == "authorization_code" && challengeOf(r.PostForm.Get("code_verifier")) != p.verifier:
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"error":"invalid_grant"}`))
	case p.says != "" && r.PostForm.Get("subject_token") != "":
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"error":"` + p.says + `"}`))
	default:
		p.serial++
		n := string(rune('0' + p.serial))
		answer, err := json.Marshal(map[string]any{"access_token": "gho_access" + n, "refresh_token": "ghr_refresh" + n, "expires_in": 3600, "token_type": "bearer"})
		if err != nil {
			panic(err)
		}
		_, _ = w.Write(answer)
	}
}

func (p *third) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *third) count(grant string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.asked {
		if f.Get("grant_type") == grant {
			n++
		}
	}
	return n
}

type reply struct {
	status int
	header http.Header
	body   string
}

func serve(h http.Handler, r *http.Request) (reply, []*http.Cookie) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	res := w.Result()
	_ = res.Body.Close()
	return reply{res.StatusCode, res.Header, w.Body.String()}, res.Cookies()
}

func (s *site) call(who, sessionID, body string, header map[string]string) reply {
	s.t.Helper()
	return s.callAt("issues", who, sessionID, body, header)
}

func (s *site) calls(who, sessionID string) reply {
	s.t.Helper()
	return s.call(who, sessionID, toolCall, map[string]string{"MCP-Protocol-Version": "2025-11-25"})
}

// tenTimes calls f in ten goroutines, and counts its results.
func tenTimes(f func() string) map[string]int {
	var mu sync.Mutex
	var all sync.WaitGroup
	got := map[string]int{}
	for range 10 {
		all.Go(func() {
			result := f()
			mu.Lock()
			defer mu.Unlock()
			got[result]++
		})
	}
	all.Wait()
	return got
}

// asleep asserts that no call has woken the box.
func (s *site) asleep() {
	s.t.Helper()
	commontest.EqualIn(s.t, "calls that woke the box", 0, len(s.box.woken))
}

func (s *site) hides(words ...string) {
	s.t.Helper()
	for _, word := range words {
		if strings.Contains(s.log.String(), word) {
			s.t.Errorf("the log has %s", word)
		}
	}
}

func (s *site) callAt(server, who, sessionID, body string, header map[string]string) reply {
	s.t.Helper()
	r := httptest.NewRequestWithContext(s.t.Context(), http.MethodPost, at+"/"+server+"/mcp", strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+who)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if sessionID != "" {
		r.Header.Set("Mcp-Session-Id", sessionID)
	}
	for name, value := range header {
		r.Header.Set(name, value)
	}
	res, _ := serve(s.endpoint(), r)
	return res
}

// recorded keeps the handshake of the server, so that clients need no box to begin.
func (s *site) recorded() {
	s.t.Helper()
	for _, version := range []string{"2025-11-25", "2025-06-18"} {
		commontest.OK(s.t, s.store.SaveHandshake(s.t.Context(), storage.Handshake{
			Digest: storage.RecordFor("acme", "issues"), Version: version, Expires: time.Now().Add(time.Hour),
			Result: []byte(`{"protocolVersion":"` + version + `","capabilities":{"tools":{}},"serverInfo":{"name":"issues","version":"1"}}`),
		}))
	}
}

// session opens a session for a client with some capabilities.
func (s *site) session(who, version, capabilities string) string {
	s.t.Helper()
	res := s.call(who, "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"`+version+`","capabilities":`+capabilities+`,"clientInfo":{"name":"t","version":"1"}}}`, nil)
	id := res.header.Get("Mcp-Session-Id")
	if id == "" {
		s.t.Fatal(res)
	}
	s.call(who, id, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, map[string]string{"MCP-Protocol-Version": version})
	return id
}

const toolCall = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"list","arguments":{}}}`

type browser struct {
	*site
	jar http.CookieJar
}

func (s *site) browser() *browser {
	s.t.Helper()
	jar, err := cookiejar.New(nil)
	commontest.OK(s.t, err)
	return &browser{s, jar}
}

// open requests a page and follows no redirect. A form that is not nil makes it a POST.
func (b *browser) open(target string, form url.Values) reply {
	b.t.Helper()
	if strings.HasPrefix(target, "/") {
		target = at + target
	}
	u, err := url.Parse(target)
	commontest.OK(b.t, err)
	method, body := http.MethodGet, ""
	if form != nil {
		method, body = http.MethodPost, form.Encode()
	}
	r := httptest.NewRequestWithContext(b.t.Context(), method, target, strings.NewReader(body))
	for _, c := range b.jar.Cookies(u) {
		r.AddCookie(c)
	}
	h := b.pages()
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", at)
	}
	res, cookies := serve(h, r)
	b.jar.SetCookies(u, cookies)
	return res
}

// follow opens a page and all that it redirects to on this site, or at the third party.
func (b *browser) follow(target string, form url.Values) reply {
	b.t.Helper()
	for range 10 {
		var res reply
		if u, err := url.Parse(target); err == nil && strings.HasPrefix(target, b.third.URL) {
			res = b.outside(u)
		} else {
			res = b.open(target, form)
		}
		to := res.header.Get("Location")
		if to == "" {
			return res
		}
		base, err := url.Parse(target)
		commontest.OK(b.t, err)
		next, err := base.Parse(to)
		commontest.OK(b.t, err)
		target, form = next.String(), nil
	}
	b.t.Fatal("the redirects do not end")
	return reply{}
}

func (b *browser) outside(u *url.URL) reply {
	b.t.Helper()
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	r, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, u.String(), nil)
	commontest.OK(b.t, err)
	res, err := client.Do(r)
	commontest.OK(b.t, err)
	_ = res.Body.Close()
	return reply{status: res.StatusCode, header: res.Header}
}

// fields returns the hidden fields of the form for a provider, or of the first form.
func fields(page, provider string) url.Values {
	for _, form := range strings.Split(page, "<form")[1:] {
		f := url.Values{}
		for _, m := range regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`).FindAllStringSubmatch(form, -1) {
			f.Set(m[1], html.UnescapeString(m[2]))
		}
		if provider == "" || f.Get("provider") == provider {
			return f
		}
	}
	return nil
}

func with(f url.Values, changes ...string) url.Values {
	f = maps.Clone(f)
	for i := 0; i < len(changes); i += 2 {
		f.Set(changes[i], changes[i+1])
	}
	return f
}

func (s *site) ticket(who string) string {
	s.t.Helper()
	ticket, _, err := apikey.NewTickets(s.store).Issue(s.t.Context(), storage.Identity{Tenant: "acme", Principal: who}, "issues")
	commontest.OK(s.t, err)
	return ticket
}

// identified opens a page as a principal, who shows a ticket.
func (b *browser) identified(target, who string) reply {
	b.t.Helper()
	res := b.follow(target, nil)
	return b.follow("/connect", with(fields(res.body, ""), "ticket", b.ticket(who)))
}

// elicited returns the URLs and the ids that an error -32042 has.
func elicited(t *testing.T, body string) (urls, ids []string) {
	t.Helper()
	var answer struct {
		Error struct {
			Code int
			Data struct {
				Elicitations []struct{ Mode, ElicitationID, URL, Message string }
			}
		}
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil || answer.Error.Code != -32042 {
		t.Fatalf("got %s, want the error -32042", body)
	}
	for _, e := range answer.Error.Data.Elicitations {
		if e.Mode != "url" || e.Message == "" {
			t.Errorf("got %+v", e)
		}
		urls, ids = append(urls, e.URL), append(ids, e.ElicitationID)
	}
	return urls, ids
}

// expireAt makes the token of a principal at a provider end at a time, after a life of an hour.
func (s *site) expireAt(provider, who string, until time.Time) {
	s.t.Helper()
	row, err := s.store.UpstreamTokens().Get(s.t.Context(), storage.UpstreamTokenID("acme", who, provider))
	if err == nil {
		row.Until, row.Changed = until, until.Add(-time.Hour)
		err = s.store.UpstreamTokens().Save(s.t.Context(), row)
	}
	commontest.OK(s.t, err)
}

func (s *site) connect(who string) {
	s.t.Helper()
	b := s.browser()
	page := b.identified("/connect?server=issues", who)
	if res := b.follow("/connect", with(fields(page.body, "github"), "action", "connect")); !strings.Contains(res.body, "GitHub is connected") {
		s.t.Fatal(res)
	}
	if res := b.follow("/connect", with(fields(page.body, "notes"), "action", "connect", "secret", "notes-key-of-"+who)); !strings.Contains(res.body, "notes is connected") {
		s.t.Fatal(res)
	}
}

// values returns the secrets that a principal has at github and notes.
func (s *site) values(who string) map[string]string {
	s.t.Helper()
	has, _, err := s.vault().Get(s.t.Context(), "acme", who, []string{"github", "notes"})
	commontest.OK(s.t, err)
	values := map[string]string{}
	for name, v := range has {
		values[name] = v.Value
	}
	return values
}

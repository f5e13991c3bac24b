package console_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/operate/console"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

const (
	goodKey   = "dm_good-key"
	goodToken = "da_good-token"
)

// site is a console whose API answers with the key that it got. Its client keeps cookies.
type site struct {
	t       *testing.T
	console *console.Console
	url     string
	client  *http.Client
	store   storage.Store // with the links; made by options
	asked   int           // requests that have reached the API or a server
}

func options(s *site) console.Options {
	if s.store == nil {
		s.store = storagetest.NewMemory()
	}
	return console.Options{
		Secret: []byte(strings.Repeat("s", 32)), Tickets: apikey.NewTickets(s.store),
		Hosts: func(host string) bool { return strings.HasPrefix(host, "127.0.0.1:") },
		API: func(owner bool) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				s.asked++
				who := "owner"
				if !owner {
					who = strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
				}
				if !owner && who != goodKey && who != goodToken {
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				w.WriteHeader(http.StatusOK)
				_, _ = io.WriteString(w, who+" "+r.Method+" "+r.URL.Path+" "+r.Header.Get("Origin")+r.Header.Get("Cookie"))
			})
		},
		MCP: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.asked++
			_, _ = io.WriteString(w, r.URL.Path+" "+r.Header.Get("Authorization")+r.Header.Get("Origin")+r.Header.Get("Cookie"))
		}),
	}
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t}
	s.console = console.New(options(s))
	web := httptest.NewServer(s.console)
	t.Cleanup(web.Close)
	s.url = web.URL
	jar, err := cookiejar.New(nil)
	commontest.OK(t, err)
	s.client = &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return s
}

// reply is the head of an answer.
type reply struct {
	StatusCode int
	Header     http.Header
}

// do sends a request, by default as the page does; change may turn it into a request of
// another page.
func (s *site) do(method, path, body string, change ...func(*http.Request)) (reply, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	commontest.OK(s.t, err)
	r.Header.Set(console.Header, "1")
	if method != http.MethodGet {
		r.Header.Set("Origin", s.url)
	}
	for _, c := range change {
		c(r)
	}
	res, err := s.client.Do(r)
	commontest.OK(s.t, err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	commontest.OK(s.t, err)
	return reply{res.StatusCode, res.Header}, string(text)
}

func entry(t *testing.T, c *console.Console, base string) string {
	t.Helper()
	e, err := c.Entry(t.Context(), base)
	if err != nil || e.Seconds != 60 {
		t.Fatal(e, err)
	}
	return e.URL
}

func (s *site) enter() {
	s.t.Helper()
	link := strings.TrimPrefix(entry(s.t, s.console, s.url), s.url)
	if res, _ := s.do("GET", link, ""); res.StatusCode != http.StatusSeeOther || res.Header.Get("Location") != console.Path {
		s.t.Fatalf("the link leads to %d %s", res.StatusCode, res.Header.Get("Location"))
	}
}

// link asks for a link with a key, as dormouse open does, and returns its path.
func (s *site) link(authorization string, change ...func(*http.Request)) (status int, link string) {
	s.t.Helper()
	res, text := s.do("POST", console.EntryPath, "", append([]func(*http.Request){without("Origin"), without(console.Header), set("Authorization", authorization)}, change...)...)
	var e api.Entry
	_ = json.Unmarshal([]byte(text), &e) // a refusal has no link
	return res.StatusCode, e.URL
}

func set(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func without(name string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Del(name) }
}

func TestLinkWorksOnceAndBecomesACookie(t *testing.T) {
	s := newSite(t)
	for _, authorization := range []string{"", "Bearer another"} {
		if status, link := s.link(authorization); status != http.StatusUnauthorized || link != "" {
			t.Errorf("with %q: %d %s", authorization, status, link)
		}
	}
	if status, link := s.link("Bearer "+goodKey, set("Origin", s.url), set(console.Header, "1")); status != http.StatusForbidden || link != "" {
		t.Errorf("a page gets %d %s", status, link)
	}
	_, link := s.link("Bearer " + goodKey)
	if !strings.HasPrefix(link, "/console/enter?ticket=") || strings.Contains(link, goodKey) {
		t.Fatalf("the link is %q", link)
	}
	res, _ := s.do("GET", link, "")
	cookie := res.Header.Get("Set-Cookie")
	commontest.Contains(t, "the cookie", "Path=/console/; Max-Age=43200; HttpOnly; SameSite=Strict", cookie)
	if res.StatusCode != http.StatusSeeOther || res.Header.Get("Location") != console.Path || strings.Contains(cookie, goodKey) {
		t.Errorf("the link leads to %d %v", res.StatusCode, res.Header)
	}
	if _, text := s.do("GET", "/console/api/v1/servers", ""); text != goodKey+" GET /api/v1/servers " {
		t.Errorf("the API is asked: %s", text)
	}
	again, _ := s.do("GET", link, "")
	if again.Header.Get("Set-Cookie") != "" || again.Header.Get("Location") != "/console/#/sign-in/used" {
		t.Errorf("the link works twice: %v", again.Header)
	}
	other := newSite(t)
	res, text := other.do("GET", "/console/api/v1/servers", "")
	var f api.Failure // the form of the API
	if err := json.Unmarshal([]byte(text), &f); err != nil || f.Error.Code != "unauthenticated" || res.StatusCode != http.StatusUnauthorized || other.asked != 0 {
		t.Errorf("a visitor without a cookie gets %d %s", res.StatusCode, text)
	}
}

func TestLinkEndsAfterAMinuteAndACookieAfterTwelveHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{t: t}
		c := console.New(options(s))
		ask := func(path, cookie string) *httptest.ResponseRecorder {
			r := httptest.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1:1"+path, nil)
			r.Header.Set(console.Header, "1")
			r.Header.Set("Cookie", cookie)
			w := httptest.NewRecorder()
			c.ServeHTTP(w, r)
			return w
		}
		enter := func(wait time.Duration) string {
			link := strings.TrimPrefix(entry(t, c, "http://127.0.0.1:1"), "http://127.0.0.1:1")
			time.Sleep(wait)
			cookie, _, _ := strings.Cut(ask(link, "").Header().Get("Set-Cookie"), ";")
			return cookie
		}
		commontest.EqualIn(t, "a link of a minute ago works", "", enter(time.Minute))
		cookie := enter(59 * time.Second)
		if cookie == "" {
			t.Fatal("a link of 59 seconds ago does not work")
		}
		for wait, want := range map[time.Duration]int{12*time.Hour - 2*time.Second: http.StatusOK, 12 * time.Hour: http.StatusUnauthorized} {
			begun := time.Now()
			fresh := enter(0)
			time.Sleep(wait - time.Since(begun))
			commontest.EqualIn(t, fmt.Sprintf("a cookie of %v ago", wait), want, ask("/console/api/v1/", fresh).Code)
		}
	})
}

func TestKeySignsInIfItIsGoodAndIsNotSeenAgain(t *testing.T) {
	s := newSite(t)
	if res, _ := s.do("POST", "/console/session", `{"key":"another"}`); res.StatusCode != http.StatusUnauthorized || res.Header.Get("Set-Cookie") != "" {
		t.Errorf("a wrong key: %d", res.StatusCode)
	}
	if res, _ := s.do("POST", "/console/session", `{"key":" "}`); res.StatusCode != http.StatusBadRequest {
		t.Errorf("no key: %d", res.StatusCode)
	}
	res, _ := s.do("POST", "/console/session", `{"key":"`+goodKey+`"}`)
	if res.StatusCode != http.StatusOK || strings.Contains(res.Header.Get("Set-Cookie"), goodKey) {
		t.Fatalf("a good key: %d %s", res.StatusCode, res.Header.Get("Set-Cookie"))
	}
	if _, text := s.do("GET", "/console/api/v1/calls", ""); text != goodKey+" GET /api/v1/calls " {
		t.Errorf("the API is asked: %s", text)
	}
	// The page's own Authorization header does not replace the visitor's key.
	if _, text := s.do("POST", "/console/mcp/one", "{}", set("Authorization", "Bearer other")); text != "/one/mcp Bearer "+goodKey {
		t.Errorf("a server is asked: %s", text)
	}
	if res, _ := s.do("DELETE", "/console/session", ""); res.StatusCode != http.StatusNoContent {
		t.Error(res.StatusCode)
	}
	if res, _ := s.do("GET", "/console/api/v1/calls", ""); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("after signing out: %d", res.StatusCode)
	}
	// No server gets a user's token for the console. The page makes a key.
	s.do("POST", "/console/session", `{"key":"`+goodToken+`"}`)
	if _, text := s.do("POST", "/console/mcp/one", "{}", set("Authorization", "Bearer dm_made")); text != "/one/mcp Bearer dm_made" {
		t.Errorf("a server is asked: %s", text)
	}
}

// Behind a function, another process may serve each request. It knows only what the store
// has.
func TestAnotherProcessTakesALinkOnceAndNobodyReadsItsKeyInTheStore(t *testing.T) {
	s, kept := &site{t: t}, &keeping{Store: storagetest.NewMemory()}
	s.store = kept
	ask := func(method, path string, change func(*http.Request)) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(console.Under(t.Context(), "/v1"), method, "http://127.0.0.1:1"+path, nil)
		change(r)
		w := httptest.NewRecorder()
		console.New(options(s)).ServeHTTP(w, r)
		return w
	}
	made := ask("POST", console.EntryPath, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+goodKey) })
	var e api.Entry
	if err := json.Unmarshal(made.Body.Bytes(), &e); err != nil {
		t.Fatal(made.Body, err)
	}
	if record := fmt.Sprintf("%s %s", kept.ticket.Props, kept.ticket.Hash); strings.Contains(record, goodKey) || strings.Contains(record, strings.TrimPrefix(e.URL, "/console/enter?ticket=")) {
		t.Errorf("the store has %s", record)
	}
	// The record in the store cannot be used as a cookie.
	var w struct{ Visitor string }
	commontest.OK(t, json.Unmarshal(kept.ticket.Props, &w))
	entered := ask("GET", e.URL, func(*http.Request) {})
	cookie := entered.Result().Cookies()[0]
	if cookie.Path != "/v1/console/" || entered.Header().Get("Location") != "/v1/console/home" {
		t.Errorf("behind a stage: %v", entered.Header())
	}
	for value, want := range map[string]int{cookie.Value: http.StatusOK, w.Visitor: http.StatusUnauthorized} {
		got := ask("GET", "/console/api/v1/", func(r *http.Request) {
			r.Header.Set(console.Header, "1")
			r.AddCookie(&http.Cookie{Name: cookie.Name, Value: value})
		})
		commontest.EqualIn(t, fmt.Sprintf("with the cookie %s", value), want, got.Code)
	}
	commontest.EqualIn(t, "another process takes the link again", "/v1/console/home#/sign-in/used", ask("GET", e.URL, func(*http.Request) {}).Header().Get("Location"))
	if res := ask("GET", "/console/home", func(*http.Request) {}); res.Code != http.StatusOK || !strings.Contains(res.Body.String(), `src="files/`) {
		t.Errorf("the page is %d %s", res.Code, res.Body)
	}
	commontest.EqualIn(t, "/console leads to", "/v1/console/home", ask("GET", "/console", func(*http.Request) {}).Header().Get("Location"))
	kept.down = true
	commontest.EqualIn(t, "while the store does not answer", http.StatusServiceUnavailable, ask("GET", e.URL, func(*http.Request) {}).Code)
}

// keeping remembers the last entry ticket, and fails to take tickets while down is true.
type keeping struct {
	storage.Store
	ticket storage.EntryTicket
	down   bool
}

func (k *keeping) PutEntryTicket(ctx context.Context, t storage.EntryTicket) error {
	k.ticket = t
	return k.Store.PutEntryTicket(ctx, t)
}

func (k *keeping) TakeEntryTicket(ctx context.Context, hash string) (storage.EntryTicket, error) {
	if k.down {
		return storage.EntryTicket{}, storage.Errorf(storage.Unavailable, "the store does not answer")
	}
	return k.Store.TakeEntryTicket(ctx, hash)
}

// A ticket to a server does not sign in to the console: clients, such as pages of other
// sites, get these tickets.
func TestTicketToAServerIsNoLink(t *testing.T) {
	s := newSite(t)
	ticket, _, err := apikey.NewTickets(s.store).Issue(t.Context(), storage.Identity{Tenant: "default", Principal: "ada"}, "everything")
	commontest.OK(t, err)
	if res, _ := s.do("GET", "/console/enter?ticket="+ticket, ""); res.Header.Get("Set-Cookie") != "" || res.Header.Get("Location") != "/console/#/sign-in/used" {
		t.Errorf("it leads to %v", res.Header)
	}
}

// The console's own page can act for a visitor, and no other page can. The console does not rely on
// SameSite.
func TestPagesOfOthersAreRefused(t *testing.T) {
	s := newSite(t)
	s.enter()
	s.asked = 0
	for name, change := range map[string]func(*http.Request){
		"without the header":    without(console.Header),
		"without an Origin":     without("Origin"),
		"of another Origin":     set("Origin", "https://evil.example"),
		"of another port":       set("Origin", "http://127.0.0.1:1"),
		"of no Origin":          set("Origin", "null"),
		"of two Origins":        func(r *http.Request) { r.Header.Add("Origin", "https://evil.example") },
		"of another site":       set("Sec-Fetch-Site", "cross-site"),
		"of another subdomain":  set("Sec-Fetch-Site", "same-site"),
		"asking for permission": func(r *http.Request) { r.Method = http.MethodOptions; r.Header.Del(console.Header) },
		"by another host":       func(r *http.Request) { r.Host = "rebound.example" },
	} {
		for _, path := range []string{"/console/api/v1/stop", "/console/mcp/one", "/console/session"} {
			res, _ := s.do("POST", path, "{}", change)
			if res.StatusCode/100 != 4 || res.Header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("a request %s to %s: %d", name, path, res.StatusCode)
			}
		}
	}
	if res, _ := s.do("GET", "/console/api/v1/servers", "", without(console.Header)); res.StatusCode != http.StatusForbidden {
		t.Errorf("a read without the header: %d", res.StatusCode)
	}
	commontest.EqualIn(t, "requests reached the API or a server", 0, s.asked)
	if _, text := s.do("POST", "/console/api/v1/stop", "{}"); text != "owner POST /api/v1/stop " {
		t.Errorf("the page itself: %s", text)
	}
	// The user of the machine has no key, so the page makes one and sends it.
	if _, text := s.do("POST", "/console/mcp/one", "{}", set("Authorization", "Bearer made")); text != "/one/mcp Bearer made" {
		t.Errorf("a server is asked: %s", text)
	}
}

// Browsers load only the page's own files. They keep these files, and ask for the page anew.
func TestPageLoadsNothingOfOthersAndIsKeptByBrowsers(t *testing.T) {
	s := newSite(t)
	res, page := s.do("GET", console.Path, "")
	policy := res.Header.Get("Content-Security-Policy")
	if res.StatusCode != http.StatusOK || !strings.HasPrefix(policy, "default-src 'self';") || strings.Contains(policy, "unsafe") || !strings.Contains(policy, "frame-ancestors 'none'") {
		t.Errorf("%d, the policy is %s", res.StatusCode, policy)
	}
	if res.Header.Get("X-Content-Type-Options") != "nosniff" || res.Header.Get("Referrer-Policy") != "no-referrer" || res.Header.Get("Cache-Control") != "no-cache" {
		t.Error(res.Header)
	}
	if res, _ := s.do("GET", console.Path, "", set("If-None-Match", res.Header.Get("ETag"))); res.StatusCode != http.StatusNotModified {
		t.Errorf("a page that the browser has: %d", res.StatusCode)
	}
	files := 0
	for part := range strings.SplitSeq(page, `"`) {
		if !strings.HasPrefix(part, "files/") {
			continue
		}
		files++
		if res, _ := s.do("GET", console.Path+part, "", set("Accept-Encoding", "gzip")); res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") == "" || res.Header.Get("Cache-Control") != "public, max-age=31536000, immutable" {
			t.Errorf("%s: %d %v", part, res.StatusCode, res.Header)
		}
	}
	if files < 10 {
		t.Errorf("the page names %d files", files)
	}
	if res, _ := s.do("GET", "/console/files/other/main.js", ""); res.StatusCode != http.StatusNotFound {
		t.Errorf("a file of another version: %d", res.StatusCode)
	}
	o := options(s)
	o.SignIn = func() (string, string) { return `"><script>`, "https://mcp.example.com" }
	w := httptest.NewRecorder()
	console.New(o).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:1"+console.Path, nil))
	commontest.Contains(t, "the page", `data-provider="&#34;&gt;&lt;script&gt;" data-endpoint="https://mcp.example.com"`, w.Body.String())
}

func TestVendoredFilesAreThoseOfTheirPackages(t *testing.T) {
	for name, want := range map[string]string{
		"htm-preact.js":     "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7", // htm 3.1.1, preact/standalone.module.js
		"uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f", // uplot 1.6.32, dist/uPlot.iife.min.js
		"uPlot.min.css":     "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04", // uplot 1.6.32, dist/uPlot.min.css
	} {
		text, err := os.ReadFile("page/vendor/" + name)
		commontest.OK(t, err)
		commontest.EqualIn(t, name, want, fmt.Sprintf("%x", sha256.Sum256(text)))
	}
	for name, want := range map[string]string{"htm.LICENSE": "Apache License", "preact.LICENSE": "MIT License", "uPlot.LICENSE": "MIT License"} {
		text, err := os.ReadFile("page/vendor/" + name)
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s is no %s: %v", name, want, err)
		}
	}
	all, err := os.ReadDir("page/vendor")
	if err != nil || len(all) != 6 {
		t.Errorf("page/vendor has %d files, %v", len(all), err)
	}
}

package console_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/api"
	"github.com/dormouse-mcp/dormouse/shared/console"
)

const goodKey = "good-key"

// site is a console whose API says who asks. Its client keeps cookies.
type site struct {
	t       *testing.T
	console *console.Console
	url     string
	client  *http.Client
	asked   int // requests that have reached the API or a server
}

func options(s *site) console.Options {
	return console.Options{
		Secret: []byte(strings.Repeat("s", 32)),
		Hosts:  func(host string) bool { return strings.HasPrefix(host, "127.0.0.1:") },
		API: func(owner bool) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				s.asked++
				who := "owner"
				if !owner {
					who = strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
				}
				if !owner && who != goodKey {
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
	if err != nil {
		t.Fatal(err)
	}
	s.client = &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return s
}

// reply is the head of an answer.
type reply struct {
	StatusCode int
	Header     http.Header
}

// do sends a request, by default as the page does; change may make it another's.
func (s *site) do(method, path, body string, change ...func(*http.Request)) (reply, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set(console.Header, "1")
	if method != http.MethodGet {
		r.Header.Set("Origin", s.url)
	}
	for _, c := range change {
		c(r)
	}
	res, err := s.client.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return reply{res.StatusCode, res.Header}, string(text)
}

func (s *site) enter() {
	s.t.Helper()
	link := strings.TrimPrefix(s.console.Entry(s.url).URL, s.url)
	if res, _ := s.do("GET", link, ""); res.StatusCode != http.StatusSeeOther || res.Header.Get("Location") != console.Path {
		s.t.Fatalf("the link leads to %d %s", res.StatusCode, res.Header.Get("Location"))
	}
}

func TestLinkWorksOnceAndBecomesACookie(t *testing.T) {
	s := newSite(t)
	link := strings.TrimPrefix(s.console.Entry(s.url+"/").URL, s.url)
	res, _ := s.do("GET", link, "")
	cookie := res.Header.Get("Set-Cookie")
	for _, want := range []string{"HttpOnly", "SameSite=Strict", "Path=/console/", "Max-Age=43200"} {
		if !strings.Contains(cookie, want) {
			t.Errorf("the cookie has no %s: %s", want, cookie)
		}
	}
	if _, text := s.do("GET", "/console/api/v1/servers", ""); text != "owner GET /api/v1/servers " {
		t.Errorf("the API is asked: %s", text)
	}
	again, _ := s.do("GET", link, "")
	if again.Header.Get("Set-Cookie") != "" || again.Header.Get("Location") != "/console/#/sign-in/used" {
		t.Errorf("the link works twice: %v", again.Header)
	}
	other := newSite(t)
	if res, _ := other.do("GET", "/console/api/v1/servers", ""); res.StatusCode != http.StatusUnauthorized || other.asked != 0 {
		t.Errorf("a visitor without a cookie gets %d", res.StatusCode)
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
			link := strings.TrimPrefix(c.Entry("http://127.0.0.1:1").URL, "http://127.0.0.1:1")
			time.Sleep(wait)
			cookie, _, _ := strings.Cut(ask(link, "").Header().Get("Set-Cookie"), ";")
			return cookie
		}
		if enter(time.Minute) != "" {
			t.Error("a link of a minute ago works")
		}
		cookie := enter(59 * time.Second)
		if cookie == "" {
			t.Fatal("a link of 59 seconds ago does not work")
		}
		for wait, want := range map[time.Duration]int{12*time.Hour - 2*time.Second: http.StatusOK, 12 * time.Hour: http.StatusUnauthorized} {
			begun := time.Now()
			fresh := enter(0)
			time.Sleep(wait - time.Since(begun))
			if got := ask("/console/api/v1/", fresh).Code; got != want {
				t.Errorf("a cookie of %v ago: %d", wait, got)
			}
		}
		// The oldest of many links that nobody uses gives way.
		first := c.Entry("").URL
		for range 100 {
			time.Sleep(time.Millisecond)
			c.Entry("")
		}
		if ask(first, "").Header().Get("Set-Cookie") != "" {
			t.Error("over a hundred links are kept")
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
	// What a visitor with a key sends as its own is not taken.
	if _, text := s.do("POST", "/console/mcp/one", "{}", func(r *http.Request) { r.Header.Set("Authorization", "Bearer other") }); text != "/one/mcp Bearer "+goodKey {
		t.Errorf("a server is asked: %s", text)
	}
	if res, _ := s.do("DELETE", "/console/session", ""); res.StatusCode != http.StatusNoContent {
		t.Error(res.StatusCode)
	}
	if res, _ := s.do("GET", "/console/api/v1/calls", ""); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("after signing out: %d", res.StatusCode)
	}
}

// The holder of a key of another machine gets a link as the user of the machine does.
func TestKeyMakesALinkThatSignsInOnceWithItsRights(t *testing.T) {
	s := newSite(t)
	with := func(key string) func(*http.Request) {
		return func(r *http.Request) {
			r.Header.Del("Origin")
			r.Header.Del(console.Header)
			if key != "" {
				r.Header.Set("Authorization", "Bearer "+key)
			}
		}
	}
	for key, want := range map[string]int{"": http.StatusUnauthorized, "another": http.StatusUnauthorized} {
		if res, text := s.do("POST", console.EntryPath, "", with(key)); res.StatusCode != want || strings.Contains(text, "ticket") {
			t.Errorf("with the key %q: %d %s", key, res.StatusCode, text)
		}
	}
	ofAPage := func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+goodKey) }
	if res, text := s.do("POST", console.EntryPath, "", ofAPage); res.StatusCode != http.StatusForbidden || strings.Contains(text, "ticket") {
		t.Errorf("a page gets %d %s", res.StatusCode, text)
	}
	var e api.Entry
	_, text := s.do("POST", console.EntryPath, "", with(goodKey))
	if err := json.Unmarshal([]byte(text), &e); err != nil || e.Seconds != 60 || !strings.HasPrefix(e.URL, "/console/enter?ticket=") || strings.Contains(text, goodKey) {
		t.Fatalf("%s, %v", text, err)
	}
	res, _ := s.do("GET", e.URL, "")
	if res.Header.Get("Location") != console.Path || strings.Contains(res.Header.Get("Set-Cookie"), goodKey) {
		t.Errorf("the link leads to %v", res.Header)
	}
	if _, text := s.do("GET", "/console/api/v1/servers", ""); text != goodKey+" GET /api/v1/servers " {
		t.Errorf("the API is asked: %s", text)
	}
	if res, _ := s.do("GET", e.URL, ""); res.Header.Get("Location") != "/console/#/sign-in/used" {
		t.Errorf("the link works twice: %v", res.Header)
	}
}

func TestCookieOfAnotherMachineIsNotGood(t *testing.T) {
	s := newSite(t)
	s.enter()
	cookies := s.client.Jar.Cookies(mustRequest(t, s.url+console.Path).URL)
	o := options(s)
	o.Secret = []byte(strings.Repeat("t", 32))
	other := console.New(o)
	r := mustRequest(t, "http://127.0.0.1:1/console/api/v1/")
	r.Header.Set(console.Header, "1")
	w := httptest.NewRecorder()
	link := mustRequest(t, other.Entry("http://127.0.0.1:1").URL)
	other.ServeHTTP(w, link)
	name, _, _ := strings.Cut(w.Header().Get("Set-Cookie"), "=")
	if name == cookies[0].Name {
		t.Error("two machines use one name for their cookies")
	}
	r.AddCookie(&http.Cookie{Name: name, Value: cookies[0].Value})
	w = httptest.NewRecorder()
	if other.ServeHTTP(w, r); w.Code != http.StatusUnauthorized {
		t.Errorf("it answers %d", w.Code)
	}
}

func mustRequest(t *testing.T, url string) *http.Request {
	t.Helper()
	return httptest.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
}

// A page of others has the visitor's cookie sent by no browser that knows SameSite. It is
// refused all the same.
func TestPagesOfOthersAreRefused(t *testing.T) {
	s := newSite(t)
	s.enter()
	s.asked = 0
	set := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	without := func(name string) func(*http.Request) { return func(r *http.Request) { r.Header.Del(name) } }
	for name, change := range map[string]func(*http.Request){
		"without the header":    without(console.Header),
		"without an Origin":     without("Origin"),
		"of another Origin":     set("Origin", "https://evil.example"),
		"of another port":       set("Origin", "http://127.0.0.1:1"),
		"of no Origin":          set("Origin", "null"),
		"of two Origins":        func(r *http.Request) { r.Header.Add("Origin", "https://evil.example") },
		"of another site":       set("Sec-Fetch-Site", "cross-site"),
		"of another subdomain":  set("Sec-Fetch-Site", "same-site"),
		"by a name of its own":  func(r *http.Request) { r.Host = "rebound.example" },
		"asking for permission": func(r *http.Request) { r.Method = http.MethodOptions; r.Header.Del(console.Header) },
	} {
		for _, path := range []string{"/console/api/v1/stop", "/console/mcp/one", "/console/session"} {
			res, _ := s.do("POST", path, "{}", change)
			if res.StatusCode/100 != 4 || s.asked != 0 || res.Header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("a request %s to %s: %d", name, path, res.StatusCode)
			}
		}
	}
	if res, _ := s.do("GET", "/console/api/v1/servers", "", without(console.Header)); res.StatusCode != http.StatusForbidden {
		t.Errorf("a read without the header: %d", res.StatusCode)
	}
	if res, text := s.do("POST", "/console/api/v1/stop", "{}"); res.StatusCode != http.StatusOK || text != "owner POST /api/v1/stop " {
		t.Errorf("the page itself: %d %s", res.StatusCode, text)
	}
	// The user of the machine has no key, and the page makes one where callers need it.
	if _, text := s.do("POST", "/console/mcp/one", "{}", set("Authorization", "Bearer made")); text != "/one/mcp Bearer made" {
		t.Errorf("a server is asked: %s", text)
	}
}

func TestPageLoadsNothingOfOthersAndIsKeptByBrowsers(t *testing.T) {
	s := newSite(t)
	res, first := s.do("GET", console.Path, "")
	policy := res.Header.Get("Content-Security-Policy")
	if !strings.HasPrefix(policy, "default-src 'self';") || strings.Contains(policy, "unsafe") || !strings.Contains(policy, "frame-ancestors 'none'") {
		t.Errorf("the policy is %s", policy)
	}
	if res.Header.Get("Cache-Control") != "no-cache" || strings.Contains(first, "VERSION") || strings.Contains(first, "<script>") {
		t.Errorf("%v\n%s", res.Header, first)
	}
	tag := res.Header.Get("ETag")
	if res, _ := s.do("GET", console.Path, "", func(r *http.Request) { r.Header.Set("If-None-Match", tag) }); res.StatusCode != http.StatusNotModified {
		t.Errorf("a page that the browser has: %d", res.StatusCode)
	}
	for _, part := range strings.Split(first, `"`) {
		if !strings.HasPrefix(part, "files/") {
			continue
		}
		res, _ := s.do("GET", console.Path+part, "", func(r *http.Request) { r.Header.Set("Accept-Encoding", "gzip") })
		if res.StatusCode != http.StatusOK || res.Header.Get("Cache-Control") != "public, max-age=31536000, immutable" || res.Header.Get("Content-Type") == "" {
			t.Errorf("%s: %d %v", part, res.StatusCode, res.Header)
		}
	}
	all, err := os.ReadDir("page")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if !f.IsDir() && f.Name() != "index.html" && !strings.Contains(first, "/"+f.Name()+`"`) {
			t.Errorf("the first page does not name %s, so it comes late", f.Name())
		}
	}
	for _, gone := range []string{"/console/files/other/main.js", "/console/files/../console.go", "/console/nothing"} {
		if res, _ := s.do("GET", gone, ""); res.StatusCode != http.StatusNotFound && res.StatusCode != http.StatusTemporaryRedirect && res.StatusCode != http.StatusMovedPermanently {
			t.Errorf("%s: %d", gone, res.StatusCode)
		}
	}
	if res, _ := s.do("GET", "/console", ""); res.Header.Get("Location") != console.Path {
		t.Errorf("/console leads to %q", res.Header.Get("Location"))
	}
}

// maxPage bounds what a browser loads for the page, packed, in bytes.
const maxPage = 70_000

func TestPageIsSmall(t *testing.T) {
	s := newSite(t)
	_, first := s.do("GET", console.Path, "")
	total := 0
	for _, path := range append(strings.Split(first, `"`), "") {
		if path != "" && !strings.HasPrefix(path, "files/") {
			continue
		}
		_, packed := s.do("GET", console.Path+path, "", func(r *http.Request) { r.Header.Set("Accept-Encoding", "gzip") })
		total += len(packed)
	}
	t.Logf("the page has %d bytes, packed", total)
	if total > maxPage || total < 20_000 {
		t.Errorf("the page has %d bytes, packed; want at most %d", total, maxPage)
	}
}

// The files of others are those of their packages, unchanged.
func TestVendoredFilesAreThoseOfTheirPackages(t *testing.T) {
	for name, want := range map[string]string{
		"htm-preact.js":     "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7", // htm 3.1.1, preact/standalone.module.js
		"uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f", // uplot 1.6.32, dist/uPlot.iife.min.js
		"uPlot.min.css":     "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04", // uplot 1.6.32, dist/uPlot.min.css
	} {
		text, err := os.ReadFile("page/vendor/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != want {
			t.Errorf("%s has the SHA-256 %x, want %s", name, sum, want)
		}
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

func TestRefusalsHaveTheFormOfTheAPI(t *testing.T) {
	s := newSite(t)
	_, text := s.do("GET", "/console/api/v1/servers", "")
	var f api.Failure
	if err := json.Unmarshal([]byte(text), &f); err != nil || f.Error.Code != "unauthenticated" {
		t.Errorf("%s, %v", text, err)
	}
}

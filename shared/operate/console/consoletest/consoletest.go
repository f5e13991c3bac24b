// Package consoletest has what every console promises its visitors, as tests.
package consoletest

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/operate/console"
)

// Reply is the head of an answer.
type Reply struct {
	StatusCode int
	Header     http.Header
}

// Do sends a request as the page does. The functions in change can turn it into a request of
// another page. Do keeps cookies and follows no redirect. The argument path is without the prefix
// that browsers may see (see console.Under).
type Do func(method, path, body string, change ...func(*http.Request)) (Reply, string)

func set(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func without(name string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Del(name) }
}

// Link asks for a link with a key, as dormouse open does, and returns its path.
func Link(t *testing.T, do Do, key string) string {
	t.Helper()
	var e api.Entry
	res, text := do("POST", console.EntryPath, "", without("Origin"), without(console.Header), set("Authorization", "Bearer "+key))
	if err := json.Unmarshal([]byte(text), &e); err != nil || res.StatusCode != http.StatusOK || e.Seconds != 60 || !strings.HasPrefix(e.URL, "/console/enter?ticket=") || strings.Contains(text, key) {
		t.Fatalf("a link: %d %s, %v", res.StatusCode, text, err)
	}
	return e.URL
}

// LinkWorksOnce checks that the holder of a key gets a link that becomes a cookie of the page,
// once. The argument page is the path of the page as browsers see it.
func LinkWorksOnce(t *testing.T, do Do, key, page string) {
	t.Helper()
	for bad, want := range map[string]int{"": http.StatusUnauthorized, "Bearer another": http.StatusUnauthorized} {
		if res, text := do("POST", console.EntryPath, "", without("Origin"), without(console.Header), set("Authorization", bad)); res.StatusCode != want || strings.Contains(text, "ticket") {
			t.Errorf("with %q: %d %s", bad, res.StatusCode, text)
		}
	}
	if res, text := do("POST", console.EntryPath, "", set("Authorization", "Bearer "+key)); res.StatusCode != http.StatusForbidden || strings.Contains(text, "ticket") {
		t.Errorf("a page gets %d %s", res.StatusCode, text)
	}
	if res, _ := do("GET", "/console/api/v1/", ""); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("before the sign-in: %d", res.StatusCode)
	}
	link := Link(t, do, key)
	res, _ := do("GET", link, "")
	cookie := res.Header.Get("Set-Cookie")
	for _, want := range []string{"HttpOnly", "SameSite=Strict", "Path=" + page[:strings.LastIndex(page, "/")+1], "Max-Age=43200"} {
		if !strings.Contains(cookie, want) {
			t.Errorf("the cookie has no %s: %s", want, cookie)
		}
	}
	if res.StatusCode != http.StatusSeeOther || res.Header.Get("Location") != page || strings.Contains(cookie, key) {
		t.Errorf("the link leads to %d %v", res.StatusCode, res.Header)
	}
	if res, text := do("GET", "/console/api/v1/", ""); res.StatusCode != http.StatusOK {
		t.Errorf("with the cookie: %d %s", res.StatusCode, text)
	}
	again, _ := do("GET", link, "")
	if again.Header.Get("Set-Cookie") != "" || again.Header.Get("Location") != page+"#/sign-in/used" {
		t.Errorf("the link works twice: %v", again.Header)
	}
	if res, _ := do("DELETE", "/console/session", ""); res.StatusCode != http.StatusNoContent {
		t.Errorf("signing out: %d", res.StatusCode)
	}
	if res, _ := do("GET", "/console/api/v1/", ""); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("after signing out: %d", res.StatusCode)
	}
}

// PagesOfOthersAreRefused checks that the console's own page can act for a visitor, and that no
// other page can. The console does not rely on SameSite.
func PagesOfOthersAreRefused(t *testing.T, do Do) {
	t.Helper()
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
	} {
		for _, path := range []string{"/console/api/v1/stop", "/console/mcp/one", "/console/session"} {
			res, _ := do("POST", path, "{}", change)
			if res.StatusCode/100 != 4 || res.Header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("a request %s to %s: %d", name, path, res.StatusCode)
			}
		}
	}
	if res, _ := do("GET", "/console/api/v1/servers", "", without(console.Header)); res.StatusCode != http.StatusForbidden {
		t.Errorf("a read without the header: %d", res.StatusCode)
	}
	if res, text := do("POST", "/console/api/v1/stop", "{}"); res.StatusCode != http.StatusOK {
		t.Errorf("the page itself: %d %s", res.StatusCode, text)
	}
}

// PageLoadsNothingOfOthers checks the headers that make a browser load only the page's
// own files, and that these files exist.
func PageLoadsNothingOfOthers(t *testing.T, do Do) {
	t.Helper()
	for _, path := range []string{console.Path, console.Path + "home"} {
		res, first := do("GET", path, "")
		policy := res.Header.Get("Content-Security-Policy")
		if res.StatusCode != http.StatusOK || !strings.HasPrefix(policy, "default-src 'self';") || strings.Contains(policy, "unsafe") || !strings.Contains(policy, "frame-ancestors 'none'") {
			t.Errorf("%s: %d, the policy is %s", path, res.StatusCode, policy)
		}
		if res.Header.Get("X-Content-Type-Options") != "nosniff" || res.Header.Get("Referrer-Policy") != "no-referrer" || res.Header.Get("Cache-Control") != "no-cache" {
			t.Errorf("%s: %v", path, res.Header)
		}
		files := 0
		for _, part := range strings.Split(first, `"`) {
			if !strings.HasPrefix(part, "files/") {
				continue
			}
			files++
			if res, _ := do("GET", console.Path+part, ""); res.StatusCode != http.StatusOK || res.Header.Get("Cache-Control") != "public, max-age=31536000, immutable" {
				t.Errorf("%s: %d %v", part, res.StatusCode, res.Header)
			}
		}
		if files < 10 {
			t.Errorf("%s names %d files", path, files)
		}
	}
}

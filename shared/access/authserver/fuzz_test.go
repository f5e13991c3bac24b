package authserver_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/access/authserver"
	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// FuzzRequest sends a text as the query and the cookie, or as the body, of a request for any path.
// The broker must answer without a 5xx, and without a redirect to an address that is not registered.
func FuzzRequest(f *testing.F) {
	const form, jwt = "application/x-www-form-urlencoded", "urn:ietf:params:oauth:grant-type:jwt-bearer"
	get := func(path, query string) { f.Add(path, "", query) }
	post := func(path, kind, body string) { f.Add(path, kind, body) }
	get("/.well-known/oauth-authorization-server/files/mcp", "")
	get("//authorize/%2e%2e", "")
	get("/authorize", request("c").Encode())
	get("/authorize", "client_id=c&redirect_uri=http%3A%2F%2F127.0.0.1%3A1%40evil.example%2Fcb")
	get("/authorize", "client_id=c&client_id=d")
	get("/authorize", request("https://x.example/c?d="+url.QueryEscape(doc("https://x.example/c", nil))).Encode())
	get("/callback", "code=x&state=y&iss=z")
	get("/callback", "state=x&dm_flow_aaaaaaaa=x")
	post("/authorize", form, "request=x&answer=allow&server=files")
	post("/login", form, "name=ada&groups=a,b&state=x")
	post("/token", form, "Basic Yzo=")
	post("/register", "application/json", `{"redirect_uris":["https://a.example/"],"client_name":"x","token_endpoint_auth_method":"client_secret_post"}`)
	post("/revoke", form, "token=da_x")
	// Stores refuse keys that are empty, long or not text. The broker makes no such key.
	long, handle := strings.Repeat("a", 3000), strings.Repeat("a", 26)
	for _, odd := range []string{"", "\x00", "\xff\xfe", "é", long, "dr__", "dr_" + handle + "_x", "dr_" + long + "_x", "dr_\x00_x", "dm__x", "dm_" + long + "_x", "da_", "da_" + long, long + "." + long + "." + long} {
		fields := url.Values{
			"client_id": {"c"}, "client_secret": {odd}, "code": {odd}, "refresh_token": {odd}, "token": {odd}, "assertion": {odd}, "code_verifier": {odd}, "redirect_uri": {odd}, "resource": {odd},
		}
		for _, kind := range []string{"authorization_code", "refresh_token", "client_credentials", jwt} {
			post("/token", form, with(fields, "grant_type", kind).Encode())
			post("/token", form, with(fields, "grant_type", kind, "client_id", odd).Encode())
		}
		for _, path := range authserver.Paths() {
			get(path, fields.Encode())
			post(path, form, fields.Encode())
		}
	}
	b := fuzzed(f)
	f.Fuzz(func(t *testing.T, path, kind, text string) {
		r := &http.Request{Method: http.MethodGet, URL: &url.URL{Path: path, RawQuery: text}, Header: http.Header{"Cookie": {text}}, Body: http.NoBody}
		if kind != "" {
			r = httptest.NewRequestWithContext(t.Context(), http.MethodPost, at, strings.NewReader(text))
			r.URL.Path = path
			r.Header.Set("Content-Type", kind)
			r.Header.Set("Authorization", text)
		}
		r.Host = strings.TrimPrefix(at, "http://")
		w := httptest.NewRecorder()
		b.ServeHTTP(w, r)
		if w.Code >= http.StatusInternalServerError {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		// A document may name any redirect URI of its own; the client c has one, with any port.
		to, err := url.Parse(w.Header().Get("Location"))
		own := err == nil && (to.String() == "" || to.Hostname() == "127.0.0.1" && to.Scheme == "http")
		if !own && !strings.Contains(r.URL.RawQuery, "client_id=https") {
			t.Errorf("sent to %q", to)
		}
	})
}

// fuzzed returns a broker that fetches its clients' documents from their own URLs.
func fuzzed(f *testing.F) *authserver.Server {
	store := storagetest.NewMemory()
	serves := func(body func(*http.Request) string) *http.Client {
		return &http.Client{Transport: &web{answer: func(r *http.Request) (int, http.Header, string, error) {
			return http.StatusOK, http.Header{}, body(r), nil
		}}}
	}
	b, err := authserver.New(authserver.Config{
		Settings: resourceserver.Settings{PublicURL: at, Issuer: at, Name: "dev", Brokered: resourceserver.Brokered{
			Clients:    map[string]resourceserver.Client{"c": {RedirectURIs: []string{callback}}},
			Enterprise: []resourceserver.Enterprise{{Issuer: "https://corp.example", JWKS: "https://corp.example/keys"}},
		}},
		Client:  serves(func(*http.Request) string { return `{"keys":[]}` }),
		Servers: []string{"files", "other"}, Store: store, Keys: apikey.NewKeys(store), Secret: secret(0),
		Documents: serves(func(r *http.Request) string { return r.URL.Query().Get("d") }),
	})
	commontest.OK(f, err)
	return b
}

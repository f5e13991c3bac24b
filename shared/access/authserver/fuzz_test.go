package authserver_test

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/access/authserver"
	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// fuzzed sends requests to one broker. The broker must answer each of them, without a 5xx
// and without a redirect to an address that is not registered.
func fuzzed(f *testing.F, send func(text string) *http.Request) {
	store := storagetest.NewMemory()
	b, err := authserver.New(authserver.Config{
		Settings: resourceserver.Settings{PublicURL: at, Issuer: at, Name: "dev", Brokered: resourceserver.Brokered{
			Clients:    map[string]resourceserver.Client{"c": {RedirectURIs: []string{callback}}},
			Enterprise: []resourceserver.Enterprise{{Issuer: "https://corp.example", JWKS: "https://corp.example/keys"}},
		}},
		Client: &http.Client{Transport: &web{answer: func(*http.Request) (int, http.Header, string, error) {
			return http.StatusOK, http.Header{}, `{"keys":[]}`, nil
		}}},
		Servers: []string{"files", "other"}, Store: store, Keys: apikey.NewKeys(store), Secret: secret(0),
		Documents: &http.Client{Transport: &web{answer: func(r *http.Request) (int, http.Header, string, error) {
			return http.StatusOK, http.Header{}, r.URL.Query().Get("d"), nil
		}}},
	})
	commontest.OK(f, err)
	f.Fuzz(func(t *testing.T, text string) {
		r := send(text)
		r.Host = strings.TrimPrefix(at, "http://")
		w := httptest.NewRecorder()
		b.ServeHTTP(w, r)
		res := w.Result()
		_ = res.Body.Close()
		if res.StatusCode >= http.StatusInternalServerError {
			t.Errorf("%d %s", res.StatusCode, w.Body)
		}
		// A document may name any redirect URI of its own; the client c has one, with any port.
		to, err := url.Parse(res.Header.Get("Location"))
		own := err == nil && (to.String() == "" || to.Hostname() == "127.0.0.1" && to.Scheme == "http")
		if !own && !strings.Contains(r.URL.RawQuery, "client_id=https") {
			t.Errorf("sent to %q", to)
		}
	})
}

func get(path string) func(string) *http.Request {
	return func(query string) *http.Request {
		return &http.Request{Method: http.MethodGet, URL: &url.URL{Path: path, RawQuery: query}, Header: http.Header{"Cookie": {query}}, Body: http.NoBody}
	}
}

func posted(path, kind string) func(string) *http.Request {
	return func(body string) *http.Request {
		r := httptest.NewRequest(http.MethodPost, at+path, strings.NewReader(body)) //nolint:noctx // there is no test whose context it could have
		r.Header.Set("Content-Type", kind)
		if len(body) < 100 && !strings.ContainsAny(body, "\r\n") {
			r.Header.Set("Authorization", body)
		}
		return r
	}
}

const formType = "application/x-www-form-urlencoded"

func FuzzAuthorize(f *testing.F) {
	_, challenge := pkce()
	f.Add(request("c", challenge).Encode())
	f.Add(request("https://x.example/c?d="+url.QueryEscape(doc("https://x.example/c", nil)), challenge).Encode())
	f.Add("client_id=c&redirect_uri=http%3A%2F%2F127.0.0.1%3A1%40evil.example%2Fcb")
	f.Add("client_id=c&client_id=d")
	fuzzed(f, get("/authorize"))
}

func FuzzConsent(f *testing.F) {
	f.Add("request=x&answer=allow&server=files")
	fuzzed(f, posted("/authorize", formType))
}

func FuzzCallback(f *testing.F) {
	f.Add("code=x&state=y&iss=z")
	f.Add("state=x&dm_flow_aaaaaaaa=x")
	fuzzed(f, get("/callback"))
}

func FuzzLogin(f *testing.F) {
	f.Add("name=ada&groups=a,b&state=x")
	fuzzed(f, posted("/login", formType))
}

func FuzzToken(f *testing.F) {
	for _, body := range []string{
		"grant_type=authorization_code&code=x&client_id=c&redirect_uri=x&code_verifier=x", "grant_type=refresh_token&refresh_token=dr_aaaaaaaaaaaaaaaaaaaaaaaaaa_x&client_id=c",
		"grant_type=client_credentials&client_id=aaaaaaaa&client_secret=dm_aaaaaaaa_" + strings.Repeat("a", 32) + "&resource=http%3A%2F%2F127.0.0.1%3A8787%2Ffiles%2Fmcp",
		"grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=a.b.c&client_id=c", "Basic Yzo=",
	} {
		f.Add(body)
	}
	fuzzed(f, posted("/token", formType))
}

func FuzzAssertion(f *testing.F) {
	b64 := base64.RawURLEncoding.EncodeToString
	header := b64([]byte(`{"alg":"RS256","kid":"k","typ":"oauth-id-jag+jwt"}`))
	f.Add(header + "." + b64([]byte(`{"iss":"https://corp.example","aud":"`+at+`","exp":4102444800,"iat":4102444700,"sub":"ada","client_id":"c","resource":"`+at+`/files/mcp","jti":"1"}`)) + ".c2ln")
	f.Add(header + ".e30.")
	fuzzed(f, func(assertion string) *http.Request {
		return posted("/token", formType)(url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:jwt-bearer"}, "assertion": {assertion}, "client_id": {"c"}}.Encode())
	})
}

func FuzzMetadata(f *testing.F) {
	f.Add("/.well-known/oauth-authorization-server")
	f.Add("/.well-known/oauth-authorization-server/files/mcp")
	f.Add("//authorize/%2e%2e")
	fuzzed(f, func(path string) *http.Request { return get(path)("") })
}

func FuzzRegister(f *testing.F) {
	f.Add(`{"redirect_uris":["https://a.example/"],"client_name":"x","token_endpoint_auth_method":"client_secret_post"}`)
	fuzzed(f, posted("/register", "application/json"))
}

func FuzzRevoke(f *testing.F) {
	f.Add("token=dr_aaaaaaaaaaaaaaaaaaaaaaaaaa_x&client_id=c")
	f.Add("token=da_x")
	fuzzed(f, posted("/revoke", formType))
}

// A document may be any text.
func FuzzDocument(f *testing.F) {
	_, challenge := pkce()
	f.Add(doc("https://x.example/c", nil))
	fuzzed(f, func(text string) *http.Request {
		return get("/authorize")(request("https://x.example/c?d="+url.QueryEscape(text), challenge).Encode())
	})
}

// make fuzz runs every target of this package.
func TestEveryPathHasAFuzzTarget(t *testing.T) {
	source, err := os.ReadFile("fuzz_test.go")
	commontest.OK(t, err)
	for _, path := range authserver.Paths() {
		if !strings.Contains(string(source), `"`+path+`"`) {
			t.Errorf("nothing fuzzes %s", path)
		}
	}
}

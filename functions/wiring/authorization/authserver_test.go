package authorization_test

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/functions/wiring/authorization"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// idp is an identity provider that signs everybody in as u1, and exchanges its tokens.
type idp struct {
	t         *testing.T
	url       string
	key       *rsa.PrivateKey
	last      url.Values // of the last authorization request
	exchanged []string   // tokens that were exchanged
}

func newIDP(t *testing.T) *idp {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	commontest.OK(t, err)
	i := &idp{t: t, key: key}
	s := httptest.NewServer(i)
	t.Cleanup(s.Close)
	i.url = s.URL
	return i
}

// ServeHTTP serves one request at a time.
func (i *idp) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b64 := base64.RawURLEncoding.EncodeToString
	var answer map[string]any
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		answer = map[string]any{
			"issuer": i.url, "authorization_endpoint": i.url + "/auth", "token_endpoint": i.url + "/token", "jwks_uri": i.url + "/keys",
			"id_token_signing_alg_values_supported": []string{"RS256"}, "token_endpoint_auth_methods_supported": []string{"client_secret_post"},
		}
	case "/keys":
		answer = map[string]any{"keys": []any{map[string]any{"kty": "RSA", "kid": "k", "n": b64(i.key.N.Bytes()), "e": b64(big.NewInt(int64(i.key.E)).Bytes())}}}
	case "/auth":
		i.last = r.URL.Query()
		http.Redirect(w, r, i.last.Get("redirect_uri")+"?"+url.Values{"state": {i.last.Get("state")}, "code": {"c"}}.Encode(), http.StatusSeeOther)
		return
	case "/token":
		if token := r.FormValue("subject_token"); token != "" {
			i.exchanged = append(i.exchanged, token)
			answer = map[string]any{"access_token": "crm-token", "issued_token_type": r.FormValue("requested_token_type"), "token_type": "Bearer", "expires_in": 300}
			break
		}
		id := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{"iss": i.url, "sub": "u1", "aud": "us", "exp": time.Now().Unix() + 60, "iat": time.Now().Unix(), "nonce": i.last.Get("nonce")})
		id.Header["kid"] = "k"
		text, err := id.SignedString(i.key)
		commontest.Check(i.t, err)
		answer = map[string]any{"access_token": "token-of-u1", "refresh_token": "r", "expires_in": 300, "token_type": "Bearer", "id_token": text}
	}
	w.Header().Set("Content-Type", "application/json")
	commontest.Check(i.t, json.NewEncoder(w).Encode(answer))
}

// signIn has a new user agree to a client for a server, and sign in.
func signIn(t *testing.T, at, server string) {
	t.Helper()
	jar, err := cookiejar.New(nil)
	commontest.OK(t, err)
	web := &http.Client{Jar: jar, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if r.URL.Path == "/done" {
			return http.ErrUseLastResponse
		}
		return nil
	}}
	send := func(target string, form url.Values) (to, page string) {
		method := http.MethodGet
		if form != nil {
			method = http.MethodPost
		}
		r, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(form.Encode()))
		commontest.OK(t, err)
		if form != nil {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		res, err := web.Do(r)
		commontest.OK(t, err)
		defer func() { _ = res.Body.Close() }()
		body, err := io.ReadAll(res.Body)
		commontest.OK(t, err)
		return res.Header.Get("Location"), string(body)
	}
	q := url.Values{
		"response_type": {"code"}, "client_id": {"c1"}, "redirect_uri": {"http://127.0.0.1:5000/done"}, "resource": {at + "/" + server + "/mcp"},
		"code_challenge": {"E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"}, "code_challenge_method": {"S256"},
	}
	_, page := send(at+"/authorize?"+q.Encode(), nil)
	form := url.Values{"answer": {"allow"}}
	for _, m := range regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`).FindAllStringSubmatch(page, -1) {
		form.Set(m[1], html.UnescapeString(m[2]))
	}
	if to, page := send(at+"/authorize", form); !strings.Contains(to, "/done?code=") {
		t.Fatal(to, page)
	}
}

// At a sign-in, the endpoint keeps the user's token from the identity provider if a
// server exchanges it. A later call of the user then has a token for the third party.
func TestASignInIsKeptForServersThatExchangeIt(t *testing.T) {
	i := newIDP(t)
	c, warnings, err := serversfile.Parse(fmt.Appendf(nil, `{
		"mcpServers": {
			"deals": {"command": "x", "env": {"TOKEN": "${principal:crm}"}, "x-dormouse": {"box": {"scope": "principal"}}},
			"plain": {"command": "x"}
		},
		"x-dormouse": {
			"access": {"issuer": %[1]q, "name": "corp", "client_id": "us", "client_secret": "pw", "clients": {"c1": {"name": "client", "redirect_uris": ["http://127.0.0.1:5000/done"]}}},
			"connect": {"crm": {"token": "%[2]s/token", "client_id": "us", "client_secret": "pw", "exchange": {"audience": "crm"}}}
		}
	}`, i.url, i.url), "servers.json", nil)
	if err != nil || len(warnings) > 0 {
		t.Fatal(warnings, err)
	}
	store := storagetest.NewMemory()
	var f *wiring.Function
	var pages http.Handler
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { pages.ServeHTTP(w, r) }))
	defer s.Close()
	access, err := wiring.ReadBroker(c, s.URL, "", true)
	commontest.OK(t, err)
	f, err = wiring.New(wiring.Settings{Servers: c, Secret: make([]byte, 32), Access: access, AuthServer: true},
		wiring.Parts{Store: store, Meter: meter.New(meter.Options{}), Log: slog.New(slog.DiscardHandler)})
	commontest.OK(t, err)
	if pages, err = authorization.Handler(f); err != nil {
		t.Fatal(err)
	}
	has := func() string {
		t.Helper()
		got, _, err := f.Vault.Get(t.Context(), "default", "corp:u1", []string{"crm"})
		commontest.OK(t, err)
		return got["crm"].Value
	}
	signIn(t, s.URL, "plain")
	if got := has(); got != "" || len(i.exchanged) != 0 {
		t.Errorf("after a sign-in for a server that exchanges nothing: %q", got)
	}
	signIn(t, s.URL, "deals")
	for range 2 {
		commontest.Equal(t, "crm-token", has())
	}
	commontest.Same(t, []string{"token-of-u1"}, i.exchanged)
}

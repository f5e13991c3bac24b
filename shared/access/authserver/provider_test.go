package authserver_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/dormouse-mcp/dormouse/shared/access/authserver"
	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// idp is an OpenID Connect provider, and a server like GitHub. It signs in every user.
type idp struct {
	t   *testing.T
	url string
	key *rsa.PrivateKey

	mu     sync.Mutex
	last   url.Values                                         // of the last authorization request
	used   map[string]bool                                    // codes
	claims func(nonce string) (jwt.MapClaims, map[string]any) // of the ID token, and of its header
	info   map[string]any                                     // of the user endpoint; nil for none

	unverified bool // the user's address at GitHub is not verified
	sendsIss   bool // the metadata says that each answer has iss
}

func newIDP(t *testing.T) *idp {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	commontest.OK(t, err)
	i := &idp{t: t, key: key, used: map[string]bool{}, info: map[string]any{"sub": "u1"}}
	s := httptest.NewServer(i)
	t.Cleanup(s.Close)
	i.url = s.URL
	i.claims = func(nonce string) (jwt.MapClaims, map[string]any) { return i.id(nonce, nil), nil }
	return i
}

func (i *idp) id(nonce string, changes map[string]any) jwt.MapClaims {
	return changed(jwt.MapClaims{"iss": i.url, "sub": "u1", "aud": "us", "exp": time.Now().Unix() + 60, "iat": time.Now().Unix(), "nonce": nonce, "email": "ada@example.com"}, changes)
}

func (i *idp) sign(c jwt.MapClaims, header map[string]any) string {
	token := jwt.NewWithClaims(jwt.SigningMethodRS256, c)
	token.Header["kid"] = "k"
	changed(token.Header, header)
	text, err := token.SignedString(i.key)
	commontest.Check(i.t, err)
	return text
}

func (i *idp) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	b64 := base64.RawURLEncoding.EncodeToString
	var answer any
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		answer = map[string]any{
			"issuer": i.url, "authorization_endpoint": i.url + "/auth", "token_endpoint": i.url + "/token", "jwks_uri": i.url + "/keys", "userinfo_endpoint": i.url + "/info",
			"id_token_signing_alg_values_supported": []string{"RS256"}, "token_endpoint_auth_methods_supported": []string{"client_secret_basic"},
			"authorization_response_iss_parameter_supported": i.sendsIss,
		}
	case "/keys":
		answer = map[string]any{"keys": []any{map[string]any{"kty": "RSA", "kid": "k", "use": "sig", "alg": "RS256", "n": b64(i.key.N.Bytes()), "e": b64(big.NewInt(int64(i.key.E)).Bytes())}}}
	case "/info":
		answer = i.info
	case "/token", "/login/oauth/access_token":
		id, password, _ := r.BasicAuth()
		if r.URL.Path != "/token" {
			id, password = r.FormValue("client_id"), r.FormValue("client_secret")
		}
		sum := sha256.Sum256([]byte(r.FormValue("code_verifier")))
		code := r.FormValue("code")
		if id != "us" || password != "pw" || i.used[code] || b64(sum[:]) != i.last.Get("code_challenge") || r.FormValue("redirect_uri") != i.last.Get("redirect_uri") {
			w.WriteHeader(http.StatusBadRequest)
			answer = map[string]any{"error": "invalid_grant"}
			break
		}
		i.used[code] = true
		c, header := i.claims(i.last.Get("nonce"))
		answer = map[string]any{"access_token": "theirs", "token_type": "bearer", "id_token": i.sign(c, header), "scope": "read:user,user:email"}
	case "/user":
		answer = map[string]any{"id": 42, "login": "ada", "name": "Ada"}
	case "/user/emails":
		answer = []any{map[string]any{"email": "old@example.com", "verified": true}, map[string]any{"email": "ada@example.com", "primary": true, "verified": !i.unverified}}
	}
	if answer == nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// login plays the provider's page: it returns the URL to which that page sends the user back.
func (i *idp) login(changes ...string) func(*url.URL) string {
	return func(u *url.URL) string {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.last = u.Query()
		q := with(url.Values{"state": {i.last.Get("state")}, "code": {fmt.Sprint("c", len(i.used))}}, changes...)
		return i.last.Get("redirect_uri") + "?" + q.Encode()
	}
}

func (i *idp) site(t *testing.T, change func(*authserver.Config)) *site {
	t.Helper()
	return newSite(t, func(c *authserver.Config) {
		c.Issuer, c.ClientID, c.ClientSecret, c.Name = i.url, "us", "pw", "corp"
		if change != nil {
			change(c)
		}
	})
}

func (i *idp) arrival(t *testing.T, s *site) map[string]any {
	t.Helper()
	client := s.register(callback)
	q := s.via(i.login()).signIn(ask(request(client)), "", "")
	return s.granted(redeeming(client, q.Get("code")))
}

// via is a browser that a provider sends on.
func (s *site) via(outside func(*url.URL) string) *browser {
	s.t.Helper()
	b := s.browser()
	b.outside = outside
	return b
}

func TestUsersSignInAtAProvider(t *testing.T) {
	i := newIDP(t)
	s := i.site(t, nil)
	got := i.arrival(t, s)
	who, err := verify(t, s.issued(), got["access_token"].(string), "files")
	if err != nil || who.Principal != "corp:u1" || !strings.Contains(string(who.Props), `"email":"ada@example.com"`) {
		t.Errorf("%+v %s, %v", who, who.Props, err)
	}
	if i.last.Get("scope") != "openid profile email" || i.last.Get("client_id") != "us" || i.last.Get("code_challenge_method") != "S256" || i.last.Get("nonce") == "" {
		t.Error(i.last)
	}
	commontest.EqualIn(t, "the provider's token is in the log", false, strings.Contains(s.log.String(), "theirs"))
}

func TestAnswersOfTheProviderThatAreNotGood(t *testing.T) {
	i := newIDP(t)
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	commontest.OK(t, err)
	s := i.site(t, nil)
	client := s.register(callback)
	refused := func(name string, outside func(*url.URL) string) {
		t.Helper()
		if q := s.via(outside).signIn(ask(request(client)), "", ""); q.Get("error") != "access_denied" || q.Get("code") != "" || q.Get("iss") != at {
			t.Errorf("%s: %v", name, q)
		}
	}
	refused("another issuer", i.login("iss", "https://evil.example"))
	refused("an error", i.login("error", "access_denied", "code", ""))
	q := s.via(i.login("error", "access_denied", "error_description", "not assigned")).signIn(ask(request(client)), "", "")
	commontest.Contains(t, "the client is told", "access_denied: not assigned", q.Get("error_description"))
	refused("no code", i.login("code", ""))
	i.sendsIss = true
	refused("no issuer, of a provider that names it", i.login())
	i.sendsIss = false
	i.used["used"] = true
	refused("a used code", i.login("code", "used"))
	for name, changes := range map[string]map[string]any{
		"issuer of the ID token": {"iss": "https://evil.example"}, "audience": {"aud": "others"}, "nonce": {"nonce": "x"}, "no nonce": {"nonce": nil}, "expired": {"exp": time.Now().Unix() - 600},
		"no subject": {"sub": nil},
	} {
		i.claims = func(nonce string) (jwt.MapClaims, map[string]any) { return i.id(nonce, changes), nil }
		refused(name, i.login())
	}
	i.claims = func(nonce string) (jwt.MapClaims, map[string]any) {
		return i.id(nonce, nil), map[string]any{"alg": "none"}
	}
	refused("alg none", i.login())
	i.claims = func(nonce string) (jwt.MapClaims, map[string]any) { return i.id(nonce, nil), nil }
	i.key = other
	if q := s.via(i.login()).signIn(ask(request(client)), "", ""); q.Get("code") == "" {
		t.Error("the key that the provider publishes now:", q)
	}
}

func TestClaimsThatTheIDTokenLacksAreAskedFor(t *testing.T) {
	i := newIDP(t)
	i.info = map[string]any{"sub": "u1", "groups": []string{"admins"}, "email": "other@example.com"}
	s := i.site(t, func(c *authserver.Config) { c.Claims = []string{"groups", "email"} })
	client, b := s.register(callback), s.via(i.login())
	target := ask(request(client, "resource", at+"/closed/mcp"))
	if q := b.signIn(target, "", ""); q.Get("code") == "" {
		t.Error("a group of the user endpoint:", q)
	}
	i.info = map[string]any{"sub": "u2", "groups": []string{"admins"}}
	commontest.EqualIn(t, "the user endpoint speaks of another user", "access_denied", b.signIn(target, "", "").Get("error"))
}

func TestUsersSignInAtGitHub(t *testing.T) {
	i := newIDP(t)
	s := i.site(t, func(c *authserver.Config) {
		c.Issuer, c.Name = "https://github.com", "github"
		c.Login = authserver.NewGitHub(*c, i.url)
		c.Allow = map[string]resourceserver.Rule{"*": {Emails: []string{"*@example.com"}}}
	})
	got := i.arrival(t, s)
	if who, err := verify(t, s.issued(), got["access_token"].(string), "files"); err != nil || who.Principal != "github:42" {
		t.Errorf("%+v, %v", who, err)
	}
	i.unverified = true
	q := s.via(i.login()).signIn(ask(request(s.register(callback))), "", "")
	commontest.EqualIn(t, "an address that is not verified", "access_denied", q.Get("error"))
}

func (i *idp) jag(client string, changes map[string]any, header map[string]any) string {
	c := i.id("", map[string]any{"nonce": nil, "aud": at, "resource": at + "/files/mcp", "client_id": client, "jti": fmt.Sprint(time.Now().UnixNano()), "exp": time.Now().Unix() + 300})
	h := map[string]any{"typ": "oauth-id-jag+jwt"}
	maps.Copy(h, header)
	return i.sign(changed(c, changes), h)
}

func TestAssertionsAreExchangedOnce(t *testing.T) {
	i := newIDP(t)
	s := i.site(t, func(c *authserver.Config) { c.Enterprise = []resourceserver.Enterprise{{Issuer: i.url}} })
	client := s.register(callback)
	exchange := func(assertion string) url.Values {
		return url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:jwt-bearer"}, "assertion": {assertion}, "client_id": {client}}
	}
	good := i.jag(client, map[string]any{"scope": "files:write"}, nil)
	status, got := s.token(exchange(good))
	if status != http.StatusOK || got["refresh_token"] != nil || got["scope"] != "mcp files:write" {
		t.Fatal(status, got)
	}
	if who, err := verify(t, s.issued(), got["access_token"].(string), "files"); err != nil || who.Principal != "corp:u1" {
		t.Errorf("%+v, %v", who, err)
	}
	s.refusedWith(t, exchange(good), "invalid_grant")
	all, err := s.store.Grants().List(t.Context(), "", "", 10)
	if err != nil || len(all) != 1 || all[0].Expires.Before(time.Now().Add(12*time.Minute)) {
		t.Errorf("an assertion may be good for longer than the store knows it: %+v, %v", all, err)
	}
	s.granted(exchange(i.jag(client, map[string]any{"aud": []string{at}}, nil))) // an audience in a list
	for name, changes := range map[string]map[string]any{
		"aud": {"aud": "https://evil.example"}, "two auds": {"aud": []string{at, "https://evil.example"}}, "no aud": {"aud": nil}, "resource": {"resource": "https://evil.example/files/mcp"},
		"no resource": {"resource": nil}, "client": {"client_id": "other"}, "no client": {"client_id": nil}, "iss": {"iss": "https://evil.example"}, "old": {"exp": time.Now().Unix() - 120},
		"for long": {"exp": time.Now().Unix() + 3600}, "no exp": {"exp": nil}, "cnf": {"cnf": map[string]any{"jkt": "x"}}, "no jti": {"jti": nil}, "no sub": {"sub": nil},
		"no iat": {"iat": nil}, "details": {"authorization_details": []any{map[string]any{"type": "x"}}},
	} {
		if status, got := s.token(exchange(i.jag(client, changes, nil))); got["error"] != "invalid_grant" {
			t.Errorf("%s: %d %v", name, status, got)
		}
	}
	for _, typ := range []any{"JWT", nil} {
		s.refusedWith(t, exchange(i.jag(client, nil, map[string]any{"typ": typ})), "invalid_grant")
	}
	s.refusedWith(t, with(exchange(i.jag(client, nil, nil)), "resource", at+"/other/mcp"), "invalid_grant")
	s.refusedWith(t, with(exchange(i.jag(client, nil, nil)), "client_id", ""), "invalid_client")
	// If many requests use one assertion, one request succeeds.
	one := i.jag(client, nil, nil)
	var requests sync.WaitGroup
	var won atomic.Int32
	for range 50 {
		requests.Go(func() {
			if s.do(http.MethodPost, at+"/token", exchange(one), nil).StatusCode == http.StatusOK {
				won.Add(1)
			}
		})
	}
	requests.Wait()
	commontest.EqualIn(t, "have won", 1, won.Load())
	// Without an issuer of assertions, the broker does not support this grant type.
	s.config.Enterprise = nil
	s.refusedWith(t, exchange(i.jag(client, nil, nil)), "unsupported_grant_type")
}

// fixed is a sign-in that gives everybody the same claims, and shows no page.
type fixed map[string]any

func (fixed) Origin() string { return "" }

func (fixed) URL(_ context.Context, a authserver.Attempt, redirect string) (string, error) {
	return redirect + "?" + url.Values{"state": {a.State}, "code": {"x"}}.Encode(), nil
}

func (f fixed) User(context.Context, authserver.Attempt, string, url.Values) (authserver.User, error) {
	return authserver.User{Claims: f}, nil
}

// The sign-in that takes any name is for the user of this machine. Whoever reaches the
// endpoint from elsewhere gets neither its page nor a name.
func TestTheSignInWithAnyNameIsForThisMachineOnly(t *testing.T) {
	s := newSite(t, nil)
	s.peer = "192.0.2.7:40000"
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		commontest.EqualIn(t, method+" from another machine", http.StatusBadRequest, s.do(method, at+"/login?state=x", url.Values{"name": {"boss"}, "groups": {"admins"}}, nil).StatusCode)
	}
	s.peer = "[::1]:40000"
	commontest.EqualIn(t, "from this machine", http.StatusOK, s.do(http.MethodGet, at+"/login?state=x", nil, nil).StatusCode)
}

// The users of two issuers on one host would be the same principals, unless each issuer has
// a name of its own.
func TestIssuersWithOneNameAreRefused(t *testing.T) {
	const host = "https://kc.example.com/realms/"
	s := newSite(t, func(c *authserver.Config) {
		c.PublicURL, c.Issuer, c.Name, c.ClientID, c.Login = "https://mcp.example.com", "https://login.example.com/staff", "", "us", fixed{"sub": "ada"}
	})
	for name, issuers := range map[string][]resourceserver.Enterprise{
		"":                   {{Issuer: host + "partners", Name: "partners"}, {Issuer: host + "contractors"}, {Issuer: "https://login.example.com/staff"}},
		"two realms":         {{Issuer: host + "partners"}, {Issuer: host + "contractors"}},
		"the sign-in's host": {{Issuer: "https://login.example.com/partners"}},
		"the sign-in's name": {{Issuer: host + "partners", Name: "login.example.com"}},
	} {
		s.config.Enterprise = issuers
		if _, err := authserver.New(s.config); (err == nil) != (name == "") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

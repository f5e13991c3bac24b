package resourceserver_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

const (
	issuerURL = "https://login.example/realms/one"
	publicURL = "https://mcp.example.com"
)

// issuer is an identity provider. It answers in this process, in virtual time.
type issuer struct {
	mu       sync.Mutex
	metadata map[string]any
	keys     []map[string]any
	asked    []string                       // paths
	answer   func(http.ResponseWriter) bool // replaces the issuer's answer; it returns false to leave the answer to the issuer
	active   map[string]map[string]any      // what introspection says of tokens
	form     func(r *http.Request)          // sees each introspection
}

func newIssuer() *issuer {
	return &issuer{
		metadata: map[string]any{"issuer": issuerURL, "jwks_uri": "https://login.example/keys"},
		keys:     []map[string]any{public("rsa", signers().rsa), public("ec", signers().ec), public("ed", signers().ed)},
		active:   map[string]map[string]any{},
	}
}

// RoundTrip answers as the server with this host name would.
func (i *issuer) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	w := httptest.NewRecorder()
	done := make(chan struct{})
	go func() {
		defer close(done)
		i.ServeHTTP(w, r)
	}()
	select {
	case <-done:
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	res := w.Result()
	res.Request = r
	return res, nil
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	i.asked = append(i.asked, r.URL.Path)
	answer := i.answer
	i.mu.Unlock()
	if answer != nil && answer(w) {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	switch r.URL.Path {
	case "/.well-known/openid-configuration/realms/one":
		write(w, i.metadata)
	case "/keys":
		write(w, map[string]any{"keys": i.keys})
	case "/introspect":
		_ = r.ParseForm()
		if i.form != nil {
			i.form(r)
		}
		says := map[string]any{"active": false}
		if claims := i.active[r.PostForm.Get("token")]; claims != nil {
			says = maps.Clone(claims)
			says["active"] = true
		}
		write(w, says)
	default:
		http.NotFound(w, r)
	}
}

func write(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// times returns how often a path was requested since the last call of times.
func (i *issuer) times(path string) (n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, p := range i.asked {
		if p == path {
			n++
		}
	}
	i.asked = slices.DeleteFunc(i.asked, func(p string) bool { return p == path })
	return n
}

func (i *issuer) set(change func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change()
}

func down(status int) func(http.ResponseWriter) bool {
	return func(w http.ResponseWriter) bool { w.WriteHeader(status); return true }
}

type keys struct {
	rsa   *rsa.PrivateKey
	ec    *ecdsa.PrivateKey
	ed    ed25519.PrivateKey
	other *rsa.PrivateKey // not of the issuer
}

var signers = sync.OnceValue(func() keys {
	k := keys{}
	var err [4]error
	k.rsa, err[0] = rsa.GenerateKey(rand.Reader, 2048)
	k.other, err[1] = rsa.GenerateKey(rand.Reader, 2048)
	k.ec, err[2] = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, k.ed, err[3] = ed25519.GenerateKey(rand.Reader)
	for _, e := range err {
		if e != nil {
			panic(e)
		}
	}
	return k
})

func public(id string, k crypto.Signer) map[string]any {
	b64 := base64.RawURLEncoding.EncodeToString
	switch p := k.Public().(type) {
	case *rsa.PublicKey:
		return map[string]any{"kty": "RSA", "use": "sig", "kid": id, "n": b64(p.N.Bytes()), "e": b64(big.NewInt(int64(p.E)).Bytes())}
	case *ecdsa.PublicKey:
		raw, err := p.Bytes()
		if err != nil {
			panic(err)
		}
		half := (len(raw) - 1) / 2
		return map[string]any{"kty": "EC", "kid": id, "crv": p.Curve.Params().Name, "x": b64(raw[1 : 1+half]), "y": b64(raw[1+half:])}
	case ed25519.PublicKey:
		return map[string]any{"kty": "OKP", "kid": id, "crv": "Ed25519", "x": b64(p)}
	}
	panic("no such key")
}

// claims returns the claims of a good token for server one, with changes; nil removes a claim.
func claims(changes map[string]any) jwt.MapClaims {
	now := time.Now().Unix()
	c := jwt.MapClaims{
		"iss": issuerURL, "sub": "ada", "aud": publicURL + "/one/mcp", "exp": now + 600, "iat": now, "scope": "mcp", "client_id": "app",
	}
	maps.Copy(c, changes)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	return c
}

// signed returns a token that the RSA key has signed, with changes to its header.
func signed(t *testing.T, c jwt.MapClaims, header map[string]any) string {
	t.Helper()
	return signedBy(t, jwt.SigningMethodRS256, signers().rsa, "rsa", c, header)
}

func signedBy(t *testing.T, method jwt.SigningMethod, k any, id string, c jwt.MapClaims, header map[string]any) string {
	t.Helper()
	token := jwt.NewWithClaims(method, c)
	token.Header["kid"] = id
	maps.Copy(token.Header, header)
	maps.DeleteFunc(token.Header, func(_ string, v any) bool { return v == nil })
	text, err := token.SignedString(k)
	commontest.OK(t, err)
	return text
}

func (i *issuer) server(t *testing.T, change func(*resourceserver.Settings)) *resourceserver.ResourceServer {
	t.Helper()
	s := resourceserver.Settings{PublicURL: publicURL, Issuer: issuerURL}
	if change != nil {
		change(&s)
	}
	return newServer(t, resourceserver.Config{Settings: s, Servers: []string{"one", "two"}, Client: &http.Client{Transport: i, CheckRedirect: resourceserver.SameHost}})
}

func newServer(t *testing.T, c resourceserver.Config) *resourceserver.ResourceServer {
	t.Helper()
	var err error
	if c.Sealer, err = storage.NewSealer("token", make([]byte, 32)); err != nil {
		t.Fatal(err)
	}
	r, err := resourceserver.New(c)
	commontest.OK(t, err)
	return r
}

// inTime runs a test in virtual time. It makes the keys before that, because making them
// takes real time.
func inTime(t *testing.T, test func(t *testing.T, i *issuer)) {
	signers()
	synctest.Test(t, func(t *testing.T) {
		test(t, newIssuer())
		time.Sleep(2 * time.Hour) // of answers that nobody waited for
	})
}

func verify(s *resourceserver.ResourceServer, token string) (storage.Identity, error) {
	may, err := s.VerifyGroup(context.Background(), token, "", []string{"one"})
	return may["one"], err
}

func confirm(s *resourceserver.ResourceServer, credential, server string) error {
	_, err := s.ConfirmMembers(context.Background(), credential, "", []string{server})
	return err
}

func taken(t *testing.T, what string, s *resourceserver.ResourceServer, token string) {
	t.Helper()
	_, err := verify(s, token)
	commontest.CheckIn(t, what, err)
}

// refused checks with which code a token is refused.
func refused(t *testing.T, what string, code storage.Code, s *resourceserver.ResourceServer, token string) {
	t.Helper()
	_, err := verify(s, token)
	wantCode(t, what, err, code)
}

func wantCode(t *testing.T, what string, err error, code storage.Code) {
	t.Helper()
	commontest.EqualIn(t, fmt.Sprintf("%s: the code of %v", what, err), code, storage.CodeOf(err))
}

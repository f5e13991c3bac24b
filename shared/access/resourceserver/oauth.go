// Package resourceserver identifies callers by the tokens of an identity provider. It makes the
// endpoint a resource server (OAuth 2.1; MCP, basic/authorization). It verifies tokens, decides
// by their claims which server a caller may use, and tells clients where to get tokens (RFC
// 9728).
//
// # Accepted tokens
//
// The package accepts a token if:
//
//   - it is a JWT that a key of the issuer has signed, with an algorithm of the settings
//     that fits the key;
//   - its issuer, its times (within a minute) and its audience are right;
//   - it is no token of another kind: an ID token, a logout token, a proof.
//
// The audience is the URL of the one server that the token is for, or the address of a
// group of servers. With introspection the package also asks the issuer about each token,
// and accepts tokens that are no JWT.
//
// # How fast a change takes effect
//
// A token that its issuer has revoked stays valid until it expires; with introspection, for 30
// seconds at most. A key that the issuer has withdrawn verifies tokens for at most 10 minutes. Such a
// token is good for 5 minutes more; that of a WebSocket until it expires. With introspection it is 30
// seconds. While the issuer's keys cannot be fetched, the known ones are used for at most a day.
package resourceserver

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/config/policy"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Config configures a [ResourceServer]. Settings and Sealer are required.
type Config struct {
	Settings
	// Servers are the names of the configured MCP servers. [New] refuses settings that name any
	// other server.
	Servers []string
	// Sealer seals the token of a connection if introspection is on. As long as the
	// connection is open, the package asks the issuer about that token.
	Sealer *storage.Sealer
	// Client makes the requests to the issuer; nil for a client that follows redirects
	// within a host only.
	Client *http.Client
	// Log gets a line when the issuer's keys cannot be fetched. nil for none.
	Log *slog.Logger
}

// ResourceServer verifies tokens. It is safe for concurrent use.
type ResourceServer struct {
	resources
	verifier  verifier
	introspec *introspector // nil if introspection is off
	sealer    *storage.Sealer
	needed    []string // names of the claims that a grant keeps

	mu    sync.Mutex
	known map[[sha256.Size]byte]grant
}

const (
	maxKnown   = 1000
	knownFor   = 5 * time.Minute // how long a verified token is remembered if introspection is off
	maxToken   = 8 << 10         // bytes of a token
	maxClaims  = 2 << 10         // bytes of the claims for native servers
	credential = "idp:"          // prefix of Identity.Credential
)

// New makes a ResourceServer. It makes no request. The error names the wrong setting and
// its possible values.
func New(c Config) (*ResourceServer, error) {
	s, err := c.Settings.Complete(c.Servers)
	if err != nil {
		return nil, err
	}
	c.Client, c.Log = cmp.Or(c.Client, newClient()), cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	r := &ResourceServer{
		resources: resources{s}, sealer: c.Sealer, known: map[[sha256.Size]byte]grant{},
		verifier: newVerifier(s, &keySet{issuer: s.Issuer, pinned: s.JWKS, client: c.Client, log: c.Log}),
		needed:   append(slices.Clone(s.Claims), s.Principal, s.TenantClaim, "aud", "exp", "scope", "scp", "client_id", "azp", "cid"),
	}
	if s.Introspection != nil {
		r.introspec = &introspector{s, c.Client, make(chan struct{}, maxAsking)}
	}
	r.needed = append(append(r.needed, s.Allow.Claims()...), "email_verified")
	return r, nil
}

// grant is the contents of a valid token.
type grant struct {
	claims  map[string]any // the claims that ResourceServer.needed names
	expires time.Time      // end of the token's validity, skew included
	until   time.Time      // when the token has to be verified again
}

func (s *ResourceServer) identity(g grant, token string) (storage.Identity, error) {
	who, err := s.settings.Identity(g.claims)
	if err != nil {
		return storage.Identity{}, err
	}
	if who.Credential = credential + fmt.Sprint(g.expires.Unix()); s.introspec != nil {
		who.Credential = credential + s.sealer.Seal([]byte(token))
	}
	return who, nil
}

// confirmed returns the grant of a credential that is still valid. Without introspection, the
// grant is empty.
func (s *ResourceServer) confirmed(ctx context.Context, text string) (grant, error) {
	rest, ok := strings.CutPrefix(text, credential)
	if !ok {
		return grant{}, badToken("this connection was opened with another kind of credential")
	}
	if s.introspec != nil {
		token, ok := s.sealer.Open(rest)
		if !ok {
			return grant{}, badToken("it was opened before the settings changed")
		}
		return s.grant(ctx, string(token))
	}
	expires, ok := unix(rest)
	if !ok || !time.Now().Before(expires) {
		return grant{}, badToken("it has expired")
	}
	return grant{}, nil
}

// grant verifies a token, or returns the remembered result.
func (s *ResourceServer) grant(ctx context.Context, token string) (grant, error) {
	now := time.Now()
	sum := sha256.Sum256([]byte(token))
	s.mu.Lock()
	g, ok := s.known[sum]
	s.mu.Unlock()
	if ok && now.Before(g.until) {
		return g, nil
	}
	claims, err := s.look(ctx, token)
	if err != nil {
		return grant{}, err
	}
	g = grant{claims: map[string]any{}, expires: expiry(claims)}
	for _, name := range s.needed {
		if v, ok := claims[name]; ok {
			g.claims[name] = v
		}
	}
	keep := knownFor
	if s.introspec != nil {
		keep = introspected
	}
	if g.until = now.Add(keep); g.expires.Before(g.until) {
		g.until = g.expires
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxKnown {
		clear(s.known)
	}
	s.known[sum] = g
	return g, nil
}

// look verifies a token. If introspection is on, it also asks the issuer about the token.
func (s *ResourceServer) look(ctx context.Context, token string) (map[string]any, error) {
	if len(token) > maxToken {
		return nil, badToken(fmt.Sprintf("it has more than %d bytes", maxToken))
	}
	if s.introspec == nil {
		return s.verifier.verify(ctx, token)
	}
	if strings.Count(token, ".") == 2 {
		if _, err := s.verifier.verify(ctx, token); err != nil {
			return nil, err
		}
	}
	claims, err := s.introspec.ask(ctx, token)
	if err == nil {
		err = s.verifier.judge(claims)
	}
	return claims, err
}

// meant returns nil if a grant's token is for this server or group and has the scopes that
// all tokens need.
func (s *ResourceServer) meant(g grant, server string) error {
	var err error
	switch {
	case !s.among(policy.Texts(g.claims["aud"]), server):
		err = badToken("it is for another resource; get one whose resource is the URL of this server")
	case missing(scopes(g.claims), strings.Fields(*s.settings.Scope)):
		err = lacks(strings.Fields(*s.settings.Scope))
	}
	return storage.NameRefused(err, s.settings.named(g.claims))
}

// badToken returns the error for an invalid token. The reason must not quote the token.
func badToken(why string) error {
	return storage.Errorf(storage.Unauthenticated, "this token is not valid: %s; sign in again", why)
}

func missing(has, wanted []string) bool {
	return slices.ContainsFunc(wanted, func(s string) bool { return !slices.Contains(has, s) })
}

// scopes returns the scopes of a token (RFC 9068 §2.2.3; some issuers write scp).
func scopes(claims map[string]any) (all []string) {
	for _, name := range []string{"scope", "scp"} {
		for _, text := range policy.Texts(claims[name]) {
			all = append(all, strings.Fields(text)...)
		}
	}
	return all
}

// Package oauth says who a caller is by a token of an identity provider: it makes the
// endpoint a resource server (OAuth 2.1; MCP, basic/authorization). It verifies tokens,
// decides by their claims who may use which server, and tells clients where tokens come
// from (RFC 9728). It issues none, and knows no transport, no session and no store.
//
// # What is taken
//
// A token is taken if it is a JWT that a key of the issuer has signed, with an algorithm
// of the settings that fits the key; if its issuer, its times (within a minute) and its
// audience are right; and if it is no token of another kind: an ID token, a logout token,
// a proof. The audience is the URL of the one server that it is for. With introspection
// the issuer is asked besides, and tokens that are no JWT are taken as well.
//
// # How fast a change bites
//
// A token that its issuer has taken back is good until it expires; with introspection, for
// 30 seconds at most. A key that the issuer has withdrawn is used for 15 minutes at most
// while its keys can be fetched, and else for a day.
package oauth

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Config of a [ResourceServer]. Settings and Sealer are needed.
type Config struct {
	Settings
	// Servers are the names of the servers that there are.
	Servers []string
	// Sealer seals the token of a connection while introspection is on: the issuer is
	// asked about it as long as the connection is open.
	Sealer *session.Sealer
	// Client asks the issuer; nil for one that follows redirects within a host only.
	Client *http.Client
	// Log gets a line when the issuer's keys cannot be fetched. nil for none.
	Log *slog.Logger
}

// ResourceServer takes tokens. Safe for concurrent use.
type ResourceServer struct {
	settings  Settings
	resources resources
	verifier  verifier
	introspec *introspector // nil: the issuer is not asked about tokens
	sealer    *session.Sealer
	needed    []string // names of the claims that are looked at again

	mu    sync.Mutex
	known map[[sha256.Size]byte]grant
}

// Limits of what is remembered.
const (
	maxKnown   = 1000
	knownFor   = 5 * time.Minute // of a token that nobody is asked about
	maxToken   = 8 << 10         // bytes
	maxClaims  = 2 << 10         // bytes of what native servers are told
	credential = "idp:"          // begins Identity.Credential
)

// New makes a ResourceServer. The error says what is wrong with the settings, and what
// they may be. It asks the issuer nothing.
func New(c Config) (*ResourceServer, error) {
	s, err := c.Settings.complete(c.Servers)
	if err != nil {
		return nil, err
	}
	if c.Client == nil {
		c.Client = newClient()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	r := &ResourceServer{
		settings: s, resources: resources{s}, sealer: c.Sealer, known: map[[sha256.Size]byte]grant{},
		verifier: newVerifier(s, &keySet{issuer: s.Issuer, pinned: s.JWKS, client: c.Client, log: c.Log}),
		needed:   append(slices.Clone(s.Claims), s.Principal, s.TenantClaim, "aud", "exp", "scope", "scp", "client_id", "azp", "cid"),
	}
	if s.Introspection != nil {
		r.introspec = newIntrospector(s, c.Client)
	}
	for _, rule := range s.Allow {
		r.needed = append(r.needed, rule.needs()...)
	}
	return r, nil
}

// grant is what a good token says.
type grant struct {
	claims  map[string]any // those that are needed
	expires time.Time      // when the token is not good any more, skew included
	until   time.Time      // when it has to be looked at again
}

// Verify says for whom a token speaks, and that they may use a server. It reads and
// writes no store. It asks the issuer for keys it does not know, and with introspection
// about a token it has not asked about within 30 seconds.
//
// Errors: Unauthenticated: the token is not good, or not for this server; Forbidden: it
// lacks a scope, or whom it speaks for may not use the server; Unavailable.
func (s *ResourceServer) Verify(ctx context.Context, token, server string) (session.Identity, error) {
	g, err := s.grant(ctx, token)
	if err != nil {
		return session.Identity{}, err
	}
	who, err := s.admit(g, server)
	if err != nil {
		return session.Identity{}, err
	}
	if who.Credential = credential + fmt.Sprint(g.expires.Unix()); s.introspec != nil {
		who.Credential = credential + s.sealer.Seal([]byte(token))
	}
	return who, nil
}

// Confirm says whether somebody whose token was good earlier may still use a server, by
// the Credential of their identity. Costs and errors are those of Verify.
func (s *ResourceServer) Confirm(ctx context.Context, text, server string) error {
	rest, ok := strings.CutPrefix(text, credential)
	if !ok {
		return badToken("this connection was opened with something else")
	}
	if s.introspec != nil {
		token, ok := s.sealer.Open(rest)
		if !ok {
			return badToken("it was opened before the settings changed")
		}
		g, err := s.grant(ctx, string(token))
		if err == nil {
			_, err = s.admit(g, server)
		}
		return err
	}
	expires, ok := unix(rest)
	if !ok || !time.Now().Before(expires) {
		return badToken("it has expired")
	}
	return nil
}

// grant looks at a token, or remembers that it did.
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

// look verifies a token, and asks the issuer about it if that is to be done.
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

// admit decides for one server.
func (s *ResourceServer) admit(g grant, server string) (session.Identity, error) {
	switch {
	case !s.resources.among(texts(g.claims["aud"]), server):
		return session.Identity{}, badToken("it is for something else; get one whose resource is the URL of this server")
	case missing(scopes(g.claims), strings.Fields(*s.settings.Scope)):
		return session.Identity{}, &scopeError{session.Errorf(session.Forbidden, "the token lacks a scope; get one with the scope %s", *s.settings.Scope)}
	}
	who, err := s.settings.identity(g.claims)
	if err != nil {
		return session.Identity{}, err
	}
	if s.settings.Allow == nil {
		return who, nil
	}
	rule, ok := s.settings.Allow[server]
	if !ok {
		rule, ok = s.settings.Allow[everyServer]
	}
	if !ok || !rule.fits(g.claims) {
		return session.Identity{}, session.Errorf(session.Forbidden, "you may not use this server; ask who runs it to let you in")
	}
	return who, nil
}

// scopeError is a refusal that a token with more scopes would not meet.
type scopeError struct{ refusal *session.Error }

// Error is what the client is told.
func (e *scopeError) Error() string { return e.refusal.Message }

// Unwrap gives the error with its code.
func (e *scopeError) Unwrap() error { return e.refusal }

// badToken says why a token is not good, in words without anything of it.
func badToken(why string) error {
	return session.Errorf(session.Unauthenticated, "this token is not good: %s; sign in again", why)
}

// missing says that one of the wanted scopes is not there.
func missing(has, wanted []string) bool {
	return slices.ContainsFunc(wanted, func(s string) bool { return !slices.Contains(has, s) })
}

// scopes are those that a token has been given (RFC 9068 §2.2.3; some issuers write scp).
func scopes(claims map[string]any) (all []string) {
	for _, name := range []string{"scope", "scp"} {
		for _, text := range texts(claims[name]) {
			all = append(all, strings.Fields(text)...)
		}
	}
	return all
}

// Challenge is what WWW-Authenticate says to a request that was refused with err, ""
// for nothing (RFC 6750 §3, RFC 9728 §5.1). address is what the request asked for, as
// for [ResourceServer.Metadata].
func (s *ResourceServer) Challenge(address string, tried bool, err error) string {
	problem := ""
	var scope *scopeError
	switch code := session.CodeOf(err); {
	case code == session.Unauthenticated && tried:
		problem = "invalid_token"
	case code == session.Unauthenticated:
	case errors.As(err, &scope):
		problem = "insufficient_scope"
	case code == session.Invalid:
		problem = "invalid_request"
	default:
		return ""
	}
	header := "Bearer "
	if problem != "" {
		header += `error="` + problem + `", `
	}
	header += `resource_metadata="` + s.resources.metadataURL(address) + `"`
	if *s.settings.Scope != "" {
		header += `, scope="` + strings.Join(strings.Fields(*s.settings.Scope), " ") + `"`
	}
	return header
}

// Metadata is the protected resource metadata (RFC 9728 §2) of a server at an address:
// the path that a client calls, "/SERVER/mcp" or "/SERVER/sse", with what the client has
// added to it. Clients compare it with the URL that they call.
func (s *ResourceServer) Metadata(server, address string) []byte {
	document := struct {
		Resource string   `json:"resource"`
		Issuers  []string `json:"authorization_servers"`
		Scopes   []string `json:"scopes_supported,omitempty"`
		Methods  []string `json:"bearer_methods_supported"`
		Name     string   `json:"resource_name"`
	}{s.settings.PublicURL + address, []string{s.settings.Issuer}, strings.Fields(*s.settings.Scope), []string{"header"}, server}
	text, err := json.Marshal(document)
	if err != nil {
		panic("oauth: " + err.Error()) // texts can always be marshalled
	}
	return text
}

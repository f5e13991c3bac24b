// Package auth says who a caller is: by API keys ([Keys]), by one-time tickets for
// clients that cannot send headers ([Tickets]), or, on one machine, not at all
// ([Open]). It hides what a key looks like, how it is kept (as a hash, never as
// itself) and for how long a lookup is remembered. It decides nothing about
// sessions: that a session belongs to a principal is package session's. Tokens of an
// identity provider are verified by package oauth, and taken beside keys ([Either]).
//
// A key acts as a principal of a tenant, for some servers or all. What belongs to
// the principal survives the key: one that replaces it has the same principal, and
// goes on in the same sessions.
//
// # How fast a revocation bites
//
// An instance remembers for [Remembered] that a key was good, and never that one
// was not. A request, a poll, a connect and a message over a connection that come
// later than that are refused everywhere. A response that is being held then ends
// as it would have: after 25 seconds, a stream of HTTP+SSE and a client's that does
// not poll when the platform ends it, 14 minutes at most. An open WebSocket
// connection is closed at its client's next message; one whose client is silent
// gets what the servers push until it ends by itself, two hours at most.
package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Remembered is how long an instance takes a key to be good that it has read.
const Remembered = 30 * time.Second

// touchEvery is how old Key.Used has to be to be written anew: a write on the way
// of a request.
const touchEvery = time.Hour

// maxRemembered bounds how many keys an instance remembers.
const maxRemembered = 1000

// Authenticator is one way to find out who calls, and with which right. See [Keys]
// for what the methods promise.
type Authenticator interface {
	Authenticate(r *http.Request, server string) (session.Identity, error)
	Confirm(ctx context.Context, credential, server string) error
}

// Keys authenticates callers by the API key in Authorization: Bearer. Safe for
// concurrent use.
type Keys struct {
	store session.Keys

	mu    sync.Mutex
	known map[string]memory // by ID
}

type memory struct {
	key   session.Key
	until time.Time
}

// NewKeys authenticates by the keys in a store.
func NewKeys(store session.Keys) *Keys { return &Keys{store: store, known: map[string]memory{}} }

// Authenticate says who sent a request, and that it may use a server, which need
// not be one that is configured. It costs one read if the key is not remembered,
// and once an hour a write, which no caller causes who is refused.
//
// Errors: Unauthenticated: no key, or none that is good, whatever is wrong with it;
// Forbidden: a good one, for other servers; Invalid: several headers; Unavailable.
func (a *Keys) Authenticate(r *http.Request, server string) (session.Identity, error) {
	key, err := bearer(r.Header.Values("Authorization"))
	if err != nil {
		return session.Identity{}, err
	}
	return a.verify(r.Context(), key, server)
}

// verify says whose key it is, and that it is good for a server.
func (a *Keys) verify(ctx context.Context, key, server string) (session.Identity, error) {
	id, ok := parseKey(key)
	if !ok {
		return session.Identity{}, notGood()
	}
	sum := sha256.Sum256([]byte(key))
	k, err := a.admit(ctx, id, server, func(k session.Key) bool {
		return subtle.ConstantTimeCompare(sum[:], k.Hash) == 1
	})
	if err != nil {
		return session.Identity{}, err
	}
	return session.Identity{Tenant: k.Tenant, Principal: k.Principal, Credential: k.ID, Props: k.Props}, nil
}

// Confirm says whether somebody who was authenticated earlier, with this
// [session.Identity].Credential, may still use a server. Costs and errors are those
// of Authenticate.
func (a *Keys) Confirm(ctx context.Context, credential, server string) error {
	if !isID(credential) {
		return notGood()
	}
	_, err := a.admit(ctx, credential, server, func(session.Key) bool { return true })
	return err
}

func notGood() error {
	return session.Errorf(session.Unauthenticated, "this API key is not known, or not good any more; send one that is, or ask for a new one")
}

// bearer takes the token out of the Authorization header (RFC 6750 §2.1).
func bearer(headers []string) (string, error) {
	if len(headers) == 0 {
		return "", session.Errorf(session.Unauthenticated, "the request is not authenticated; send an API key as Authorization: Bearer KEY")
	}
	if len(headers) > 1 {
		return "", session.Errorf(session.Invalid, "the request has %d Authorization headers; send one", len(headers))
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", session.Errorf(session.Unauthenticated, "the Authorization header is not understood; send Authorization: Bearer KEY")
	}
	return strings.TrimSpace(token), nil
}

// admit finds a key that is proven, good and for a server.
func (a *Keys) admit(ctx context.Context, id, server string, proven func(session.Key) bool) (session.Key, error) {
	begun := time.Now()
	k, err := a.find(ctx, id, begun)
	if errors.Is(err, session.NotFound) {
		return session.Key{}, notGood()
	}
	if err != nil {
		return session.Key{}, err
	}
	switch {
	case !proven(k) || !k.Revoked.IsZero() || !k.Expires.IsZero() && !k.Expires.After(begun):
		return session.Key{}, notGood()
	case !slices.Contains(k.Servers, server) && !slices.Contains(k.Servers, session.EveryServer):
		return session.Key{}, session.Errorf(session.Forbidden, "this API key is for other servers; use one that names this server")
	}
	if begun.Sub(k.Used) >= touchEvery {
		a.touch(ctx, k, begun)
	}
	return k, nil
}

// find returns a key as it is, or as it was a moment ago.
func (a *Keys) find(ctx context.Context, id string, now time.Time) (session.Key, error) {
	a.mu.Lock()
	m, ok := a.known[id]
	a.mu.Unlock()
	if ok && now.Before(m.until) {
		return m.key, nil
	}
	k, err := a.store.Key(ctx, id)
	if err == nil && k.Revoked.IsZero() {
		a.remember(k, now.Add(Remembered))
	}
	return k, err
}

func (a *Keys) remember(k session.Key, until time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.known) >= maxRemembered {
		clear(a.known)
	}
	a.known[k.ID] = memory{k, until}
}

// touch notes that a key was used. Whoever holds it may come in, noted or not.
func (a *Keys) touch(ctx context.Context, k session.Key, now time.Time) {
	k.Used = now
	err := a.store.SaveKey(ctx, k)
	a.mu.Lock()
	defer a.mu.Unlock()
	m, ok := a.known[k.ID]
	switch {
	case !ok:
	case errors.Is(err, session.Conflict), errors.Is(err, session.NotFound):
		// It was changed meanwhile, perhaps revoked: the next request looks.
		delete(a.known, k.ID)
	default:
		// Also when the store is in trouble, which a write of every request would add to.
		m.key.Used = now
		a.known[k.ID] = m
	}
}

// Open lets everybody in, as the one user of one machine.
type Open struct{}

// Authenticate returns tenant and principal "local".
func (Open) Authenticate(*http.Request, string) (session.Identity, error) {
	return session.Identity{Tenant: "local", Principal: "local"}, nil
}

// Confirm returns nil.
func (Open) Confirm(context.Context, string, string) error { return nil }

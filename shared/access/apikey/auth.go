// Package apikey authenticates callers by API keys ([Keys]), or by one-time tickets for clients
// that cannot send headers ([Tickets]). On one machine it can also admit all callers ([Open]).
// Package resourceserver verifies the tokens of an identity provider; [Either] takes them beside
// keys. Package sessions decides to which principal a session belongs.
//
// A key acts as a principal of a tenant, for some servers or all. The principal's sessions
// survive the key: a key that replaces it has the same principal and uses the same sessions.
//
// # How fast a revocation takes effect
//
// An instance remembers for [Remembered] that a key was good, and never that a key was bad. Thus 30
// seconds after a revocation every new request, and every message over an open connection, is
// refused everywhere. Responses that are open then end like this:
//
//   - a response that waits for events, after 25 seconds;
//   - a stream of HTTP+SSE, and the response of a client that does not poll for the rest of it,
//     when the platform ends it, after 14 minutes at most;
//   - an open WebSocket connection, at its client's next message. A silent client gets the
//     server's messages until the connection ends by itself, after two hours at most.
package apikey

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Remembered is how long an instance that has read a key uses it before it reads the key again.
const Remembered = 30 * time.Second

// touchEvery is the age of a stored Key.Used at which a request writes it again. The request waits for
// the write.
const touchEvery = time.Hour

// maxRemembered bounds how many keys an instance remembers.
const maxRemembered = 1000

// Authenticator finds out who calls, and whether the caller may use a server. [Keys] documents
// its methods.
type Authenticator interface {
	Members(r *http.Request, group string, servers []string) (map[string]storage.Identity, error)
	ConfirmMembers(ctx context.Context, credential, group string, servers []string) ([]string, error)
}

// Keys authenticates callers by the API key in Authorization: Bearer. It is safe for
// concurrent use.
type Keys struct {
	store storage.Keys

	mu    sync.Mutex
	known map[string]memory // the remembered keys, by their IDs
}

type memory struct {
	key   storage.Key
	until time.Time
}

// NewKeys returns Keys that authenticate by the keys in a store.
func NewKeys(store storage.Keys) *Keys { return &Keys{store: store, known: map[string]memory{}} }

// Members returns the identity of the sender of a request at each of the servers that its key is for.
// Cost: one read if the key is not remembered, and one write an hour for each key in use. A refused
// caller causes no write.
//
// Errors: Unauthenticated if there is no key, or none that is good, for whatever reason.
// Forbidden if a good key is for other servers. Invalid for several headers; Unavailable.
func (a *Keys) Members(r *http.Request, _ string, servers []string) (map[string]storage.Identity, error) {
	key, err := bearer(r.Header.Values("Authorization"))
	if err != nil {
		return nil, err
	}
	return a.members(r.Context(), key, servers)
}

func (a *Keys) members(ctx context.Context, key string, servers []string) (map[string]storage.Identity, error) {
	all := map[string]storage.Identity{}
	_, err := each(servers, func(server string) error {
		who, err := a.Verify(ctx, key, server)
		if err == nil {
			all[server] = who
		}
		return err
	})
	return all, err
}

// Verify returns the identity of the holder of a key, after checking that the key is good for a
// server. Costs and errors are as for Members.
func (a *Keys) Verify(ctx context.Context, key, server string) (storage.Identity, error) {
	k, err := a.whole(ctx, key, ToCall, server)
	if err != nil {
		return storage.Identity{}, err
	}
	return storage.Identity{Tenant: k.Tenant, Principal: k.Principal, Credential: k.ID, Props: k.Props}, nil
}

// whole returns the record of a key that is given with its secret, after checking that the key is
// good for a right at a server; see allow.
func (a *Keys) whole(ctx context.Context, key string, right Right, server string) (storage.Key, error) {
	id, ok := parseKey(key)
	if !ok {
		return storage.Key{}, notGood()
	}
	sum := sha256.Sum256([]byte(key))
	return a.admit(ctx, id, right, server, func(k storage.Key) bool {
		return subtle.ConstantTimeCompare(sum[:], k.Hash) == 1
	})
}

// Confirm checks that a caller that was authenticated earlier, with this
// [storage.Identity].Credential, may still use a server. Costs and errors are as for
// Members.
func (a *Keys) Confirm(ctx context.Context, credential, server string) error {
	if !isID(credential) {
		return notGood()
	}
	_, err := a.admit(ctx, credential, ToCall, server, func(storage.Key) bool { return true })
	return err
}

// ConfirmMembers returns the servers of a group for which [Keys.Confirm] accepts a credential.
//
// Errors: those of Confirm; Forbidden if the credential may be used for none of them.
func (a *Keys) ConfirmMembers(ctx context.Context, credential, _ string, servers []string) ([]string, error) {
	return each(servers, func(server string) error { return a.Confirm(ctx, credential, server) })
}

// each returns the servers for which the function admit returns nil. It ends at the first error
// other than Forbidden.
//
// Errors: those of admit; Forbidden if that was the answer for all servers.
func each(servers []string, admit func(server string) error) (still []string, err error) {
	var refused error
	for _, server := range servers {
		switch err := admit(server); {
		case err == nil:
			still = append(still, server)
		case storage.CodeOf(err) == storage.Forbidden:
			refused = err
		default:
			return nil, err
		}
	}
	if len(still) > 0 {
		refused = nil
	}
	return still, refused
}

// notGood returns an error for a bad key. The error is marked for the operator, because a caller
// cannot make another key.
func notGood() error {
	return storage.Errorf(storage.Unauthenticated, "this API key is unknown, revoked or expired; send a valid key, or ask for a new one").ForOperator()
}

// bearer returns the token of the Authorization header (RFC 6750 §2.1).
func bearer(headers []string) (string, error) {
	if len(headers) == 0 {
		return "", storage.Errorf(storage.Unauthenticated, "the request is not authenticated; send an API key as Authorization: Bearer KEY").ForOperator()
	}
	if len(headers) > 1 {
		return "", storage.Errorf(storage.Invalid, "the request has %d Authorization headers; send one", len(headers))
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", storage.Errorf(storage.Unauthenticated, "the Authorization header is not understood; send Authorization: Bearer KEY").ForOperator()
	}
	return strings.TrimSpace(token), nil
}

// admit returns the key with an id, if the function proven returns true for it, and if it is valid
// and good for a right at a server; see allow.
func (a *Keys) admit(ctx context.Context, id string, right Right, server string, proven func(storage.Key) bool) (storage.Key, error) {
	begun := time.Now()
	k, err := a.find(ctx, id, begun)
	switch {
	case errors.Is(err, storage.NotFound), err == nil && !proven(k):
		return storage.Key{}, storage.NameRefused(notGood(), storage.Identity{Credential: id})
	case err != nil:
		return storage.Key{}, err
	}
	whose := storage.Identity{Tenant: k.Tenant, Principal: k.Principal, Credential: k.ID}
	if !k.Revoked.IsZero() || !k.Expires.IsZero() && !k.Expires.After(begun) {
		return storage.Key{}, storage.NameRefused(notGood(), whose)
	}
	if err := allow(k, right, server); err != nil {
		return storage.Key{}, storage.NameRefused(err, whose)
	}
	if begun.Sub(k.Used) >= touchEvery {
		a.touch(ctx, k, begun)
	}
	return k, nil
}

// find returns a key from memory or from the store.
func (a *Keys) find(ctx context.Context, id string, now time.Time) (storage.Key, error) {
	a.mu.Lock()
	m, ok := a.known[id]
	a.mu.Unlock()
	if ok && now.Before(m.until) {
		return m.key, nil
	}
	k, err := a.store.Keys().Get(ctx, id)
	if err == nil && k.Revoked.IsZero() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if len(a.known) >= maxRemembered {
			clear(a.known)
		}
		a.known[k.ID] = memory{k, now.Add(Remembered)}
	}
	return k, err
}

// touch stores the time at which a key was used. The caller is let in even if the write
// fails.
func (a *Keys) touch(ctx context.Context, k storage.Key, now time.Time) {
	k.Used = now
	err := a.store.Keys().Save(ctx, k)
	a.mu.Lock()
	defer a.mu.Unlock()
	m, ok := a.known[k.ID]
	switch {
	case !ok:
	case errors.Is(err, storage.Conflict), errors.Is(err, storage.NotFound):
		// The key was changed meanwhile, perhaps revoked: the next request reads it.
		delete(a.known, k.ID)
	default:
		// Set Used even if the write failed: a write for each request would burden a store in
		// trouble further.
		m.key.Used = now
		a.known[k.ID] = m
	}
}

// Open lets every caller in, as the only user of this machine.
type Open struct{}

// LocalTenant is the tenant, and the principal, of callers without a key.
const LocalTenant = "local"

// Members returns [LocalTenant] as tenant and principal, for each of the servers.
func (Open) Members(_ *http.Request, _ string, servers []string) (map[string]storage.Identity, error) {
	return Same(storage.Identity{Tenant: LocalTenant, Principal: LocalTenant}, servers), nil
}

// Same is the result of Members for a caller who may use all of the servers, with the same rules for
// tools at each.
func Same(who storage.Identity, servers []string) map[string]storage.Identity {
	all := map[string]storage.Identity{}
	for _, server := range servers {
		all[server] = who
	}
	return all
}

// ConfirmMembers returns all of the servers.
func (Open) ConfirmMembers(_ context.Context, _, _ string, servers []string) ([]string, error) {
	return servers, nil
}

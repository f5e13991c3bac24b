package apikey

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// MaxProps bounds [Grant.Props], in bytes.
const MaxProps = 4 << 10

// Grant is what a new key allows.
type Grant struct {
	Tenant    string        // 1 to 64 letters, digits, "-", "_" and ".", the first a letter or digit
	Principal string        // who the holder acts as: visible characters without spaces, 1 to 128 bytes
	Servers   []string      // at least one; storage.EveryServer for all
	Life      time.Duration // 0: the key is good until it is revoked
	Role      storage.Role
	// Props are further facts about the principal, for servers that are part of this program: a
	// JSON object of at most MaxProps bytes, or nil.
	Props []byte
}

func (g Grant) check() error {
	visible := func(c rune) bool { return unicode.IsPrint(c) && c != ' ' }
	switch {
	case !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`).MatchString(g.Tenant):
		return storage.Errorf(storage.Invalid, "%q is no name of a tenant; use up to 64 letters, digits, -, _ and .", g.Tenant)
	case g.Principal == "" || len(g.Principal) > 128 || strings.ContainsFunc(g.Principal, func(c rune) bool { return !visible(c) }):
		return storage.Errorf(storage.Invalid, "%q is no name of a principal; use up to 128 visible characters without spaces", g.Principal)
	case len(g.Servers) == 0:
		return storage.Errorf(storage.Invalid, "the key names no server; name the servers that it may call")
	case len(g.Props) > MaxProps:
		return storage.Errorf(storage.Invalid, "the props have %d bytes; at most %d are kept", len(g.Props), MaxProps)
	case g.Props != nil && (!json.Valid(g.Props) || bytes.TrimSpace(g.Props)[0] != '{'):
		return storage.Errorf(storage.Invalid, "the props are not a JSON object")
	case !slices.Contains([]storage.Role{storage.RoleUser, storage.RoleViewer, storage.RoleAuditor, storage.RoleOperator}, g.Role):
		return storage.Errorf(storage.Invalid, "%q is no role; use user, viewer, auditor or operator", g.Role)
	case g.Life < 0:
		return storage.Errorf(storage.Invalid, "the key would have expired already; give it a longer life")
	}
	return nil
}

// Create makes a key and stores its record. The store keeps only the key's hash, so the caller
// must keep the key itself.
//
// Errors: Invalid (the grant); Unavailable: the record may be stored, but the key is lost.
func Create(ctx context.Context, store storage.Keys, g Grant) (key string, record storage.Key, err error) {
	if err := g.check(); err != nil {
		return "", storage.Key{}, err
	}
	now := time.Now()
	record = storage.Key{Tenant: g.Tenant, Principal: g.Principal, Servers: g.Servers, Role: g.Role, Props: g.Props, Created: now}
	if g.Life > 0 {
		record.Expires = now.Add(g.Life)
	}
	for {
		key, record.ID = newKey()
		sum := sha256.Sum256([]byte(key))
		record.Hash = sum[:]
		// Another key hardly ever has the same 40 random bits. If one has, draw again.
		if err = store.Keys().Create(ctx, record); !errors.Is(err, storage.Conflict) {
			break
		}
	}
	if err != nil {
		return "", storage.Key{}, err
	}
	record.Rev = 1
	return key, record, nil
}

// keptRevoked is how long the record of a revoked key is kept, so that operators see it.
const keptRevoked = 30 * 24 * time.Hour

// Revoke ends a key, by its id or by the whole key, and returns its record.
//
// Errors: NotFound; Unavailable: perhaps the key is still good, so call Revoke again.
func Revoke(ctx context.Context, store storage.Keys, name string) (storage.Key, error) {
	return change(ctx, store, name, func(k *storage.Key) bool {
		if !k.Revoked.IsZero() {
			return false
		}
		k.Revoked = time.Now()
		if end := k.Revoked.Add(keptRevoked); k.Expires.IsZero() || k.Expires.After(end) {
			k.Expires = end
		}
		return true
	})
}

// Rotate makes a key that replaces another one, and returns it as [Create] does. The new key has the
// same principal, servers, role and props, and as long a life as the old one had. The argument name
// is the id of the old key, or the whole old key. The old key ends after grace, or earlier if it
// would expire earlier.
//
// Errors: NotFound; Conflict if the old key was revoked; Unavailable. After Unavailable,
// the new key is lost, even if it is stored. Perhaps the old key does not end, so call Rotate again.
func Rotate(ctx context.Context, store storage.Keys, name string, grace time.Duration) (key string, record, old storage.Key, err error) {
	if grace < 0 {
		return "", record, old, storage.Errorf(storage.Invalid, "the grace of %s is over already; use 0 or more", grace)
	}
	if old, err = store.Keys().Get(ctx, KeyID(name)); err != nil {
		return "", record, old, noKey(err)
	}
	if !old.Revoked.IsZero() {
		return "", record, old, storage.Errorf(storage.Conflict, "key %s is revoked, so there is nothing to replace; make a new one", old.ID)
	}
	g := Grant{Tenant: old.Tenant, Principal: old.Principal, Servers: old.Servers, Role: old.Role, Props: old.Props}
	if !old.Expires.IsZero() {
		g.Life = old.Expires.Sub(old.Created)
	}
	if key, record, err = Create(ctx, store, g); err != nil {
		return "", record, old, err
	}
	old, err = change(ctx, store, old.ID, func(k *storage.Key) bool {
		end := time.Now().Add(grace)
		if !k.Expires.IsZero() && k.Expires.Before(end) {
			return false
		}
		k.Expires = end
		return true
	})
	return key, record, old, err
}

// change edits a key, and tries again if the record was changed meanwhile. The function edit
// returns false if there is nothing to change.
func change(ctx context.Context, store storage.Keys, name string, edit func(*storage.Key) bool) (storage.Key, error) {
	for {
		k, err := store.Keys().Get(ctx, KeyID(name))
		if err != nil {
			return k, noKey(err)
		}
		if !edit(&k) {
			return k, nil
		}
		if err := store.Keys().Save(ctx, k); !errors.Is(err, storage.Conflict) {
			k.Rev++
			return k, err
		}
	}
}

// KeyID returns the id of a key, from the id itself or the whole key.
func KeyID(name string) string {
	id, _, _ := strings.Cut(strings.TrimPrefix(name, keyPrefix), "_")
	return id
}

// noKey replaces NotFound by the error of [NoKey], and returns other errors as they are.
func noKey(err error) error {
	if errors.Is(err, storage.NotFound) {
		return NoKey().Because(err)
	}
	return err
}

// NoKey returns the error for an id that no key has: NotFound.
func NoKey() *storage.Error {
	return storage.Errorf(storage.NotFound, "there is no key with this id; dormouse keys list shows the ids")
}

// List returns the keys of a tenant, or all keys if tenant is "", in order of id.
//
// Errors: Unavailable.
func List(ctx context.Context, store storage.Keys, tenant string) ([]storage.Key, error) {
	var all []storage.Key
	for k, err := range storage.All(ctx, store.Keys(), storage.KeyKind(), tenant) {
		if err != nil {
			return nil, err
		}
		all = append(all, k)
	}
	return all, nil
}

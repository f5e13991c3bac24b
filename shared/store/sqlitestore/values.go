package sqlitestore

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// stateKey returns the key columns of a durable value, in the order of the parameters
// ?1 to ?6 of the statements here.
func stateKey(k storage.ValueKey) []any {
	since := int64(0)
	if !k.Since.IsZero() {
		since = k.Since.UnixMilli()
	}
	return []any{k.Scope, k.Of, k.Tenant, k.Server, since, k.Name}
}

const isState = `scope = ?1 AND owner = ?2 AND tenant = ?3 AND server = ?4 AND since = ?5 AND name = ?6`

const readState = `SELECT rev, expires, data FROM states WHERE ` + isState + ` AND expires > ?7`

// LoadValue implements [storage.Values].
func (s *Store) LoadValue(ctx context.Context, k storage.ValueKey) (storage.Value, error) {
	if err := k.Check(); err != nil {
		return storage.Value{}, err
	}
	v := storage.Value{Key: k}
	var expires int64
	found, err := s.row(ctx, readState, append(stateKey(k), now()), []any{&v.Rev, &expires, &v.Data})
	if err != nil {
		return storage.Value{}, err
	}
	if found {
		v.Expires = expiryOf(expires)
	}
	return v, nil
}

const (
	// A trigger deletes a session's values with the session's row. A value that is created later would
	// stay for ever, so the statement needs that row.
	createState = `
INSERT INTO states (scope, owner, tenant, server, since, name, rev, expires, data)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9 WHERE ?1 <> 'session' OR EXISTS (SELECT 1 FROM sessions WHERE id = ?2)
ON CONFLICT (scope, owner, tenant, server, since, name) DO UPDATE SET rev = ?7, expires = ?8, data = ?9 WHERE expires <= ?10`
	saveState   = `UPDATE states SET rev = ?7, expires = ?8, data = ?9 WHERE ` + isState + ` AND rev = ?11 AND expires > ?10`
	deleteState = `DELETE FROM states WHERE ` + isState + ` AND rev = ?7 AND expires > ?8`
)

// SaveValue implements [storage.Values].
func (s *Store) SaveValue(ctx context.Context, v storage.Value) (storage.Value, error) {
	if err := v.Check(); err != nil {
		return storage.Value{}, err
	}
	was, key := v.Rev, stateKey(v.Key)
	var changed int64
	var err error
	switch v.Rev = storage.NextRev(was); {
	case len(v.Data) == 0 && was == 0:
		v.Rev = 0
	case len(v.Data) == 0:
		v = storage.Value{Key: v.Key}
		changed, err = s.write(ctx, deleteState, append(key, was, now())...)
	case was == 0:
		changed, err = s.write(ctx, createState, append(key, v.Rev, expiry(v.Expires), v.Data, now())...)
		s.tidy(ctx)
	default:
		changed, err = s.write(ctx, saveState, append(key, v.Rev, expiry(v.Expires), v.Data, now(), was)...)
	}
	if err != nil || changed > 0 {
		return v, err
	}
	return s.unsaved(ctx, v, was)
}

// unsaved returns the outcome of a SaveValue that changed no row.
func (s *Store) unsaved(ctx context.Context, v storage.Value, was int64) (storage.Value, error) {
	stored, err := s.LoadValue(ctx, v.Key)
	switch {
	case err != nil:
		return storage.Value{}, err
	case stored.Rev == 0 && was == 0 && v.Rev == 0:
		return v, nil
	case stored.Rev == 0 && was == 0 && v.Key.Scope == storage.ValueOfSession:
		return storage.Value{}, storage.Errorf(storage.NotFound, "there is no such session, or it has expired")
	}
	return stored, storage.Errorf(storage.Conflict, "the durable value %q has been changed since it was read; read it again", v.Key.Name)
}

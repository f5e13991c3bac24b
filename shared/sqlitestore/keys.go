package sqlitestore

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// keys returns the collection of keys.
func keys() collection[session.Key] {
	return collection[session.Key]{
		table: "keys", what: "key", marshal: session.MarshalKey, unmarshal: session.UnmarshalKey,
		fields: func(v *session.Key) fields { return fields{v.ID, &v.Rev, v.Tenant, v.Expires} },
	}
}

// CreateKey stores a new key; see [session.Keys].
func (s *Store) CreateKey(ctx context.Context, v session.Key) error {
	return keys().create(ctx, s, v)
}

// Key reads a key; see [session.Keys].
func (s *Store) Key(ctx context.Context, id string) (session.Key, error) {
	return keys().read(ctx, s, id)
}

// SaveKey replaces a key; see [session.Keys].
func (s *Store) SaveKey(ctx context.Context, v session.Key) error {
	return keys().save(ctx, s, v)
}

// ListKeys returns keys; see [session.Keys].
func (s *Store) ListKeys(ctx context.Context, tenant, after string, limit int) ([]session.Key, error) {
	return keys().list(ctx, s, tenant, after, limit)
}

const putEntryTicket = `INSERT OR REPLACE INTO entry_tickets (hash, expires, record) VALUES (?, ?, ?)`

// PutEntryTicket keeps a ticket; see [session.Keys].
func (s *Store) PutEntryTicket(ctx context.Context, t session.EntryTicket) error {
	record, err := session.MarshalEntryTicket(t)
	if err != nil {
		return err
	}
	if _, err = s.write(ctx, putEntryTicket, t.Hash, expiry(t.Expires), record); err == nil {
		s.tidy(ctx)
	}
	return err
}

const takeEntryTicket = `DELETE FROM entry_tickets WHERE hash = ? RETURNING expires > ?, record`

// TakeEntryTicket returns a ticket and removes it; see [session.Keys].
func (s *Store) TakeEntryTicket(ctx context.Context, hash string) (session.EntryTicket, error) {
	var alive bool
	var record []byte
	found, err := s.take(ctx, takeEntryTicket, []any{hash, now()}, []any{&alive, &record})
	if err != nil {
		return session.EntryTicket{}, err
	}
	if !found || !alive {
		return session.EntryTicket{}, session.Errorf(session.NotFound, "there is no such ticket, or it has expired")
	}
	t, err := session.UnmarshalEntryTicket(record)
	if err != nil {
		return session.EntryTicket{}, failed(err)
	}
	return t, nil
}

package sqlitestore

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

func keyOf(rev int64, record []byte) (session.Key, error) {
	k, err := session.UnmarshalKey(record)
	k.Rev = rev
	return k, err
}

func noKey() error {
	return session.Errorf(session.NotFound, "there is no such key, or it has expired")
}

const createKey = `
INSERT INTO keys (id, rev, tenant, expires, record) VALUES (?1, 1, ?2, ?3, ?4)
ON CONFLICT (id) DO UPDATE SET rev = 1, tenant = ?2, expires = ?3, record = ?4 WHERE expires <= ?5`

// CreateKey stores a new key; see [session.Keys].
func (s *Store) CreateKey(ctx context.Context, k session.Key) error {
	record, err := session.MarshalKey(k)
	if err != nil {
		return err
	}
	changed, err := s.write(ctx, createKey, k.ID, k.Tenant, expiry(k.Expires), record, now())
	if err == nil && changed == 0 {
		err = session.Errorf(session.Conflict, "there is a key with this id already")
	}
	return err
}

const readKey = `SELECT rev, record FROM keys WHERE id = ? AND expires > ?`

// Key reads a key; see [session.Keys].
func (s *Store) Key(ctx context.Context, id string) (session.Key, error) {
	var rev int64
	var record []byte
	found, err := s.row(ctx, readKey, []any{id, now()}, []any{&rev, &record})
	if err != nil {
		return session.Key{}, err
	}
	if !found {
		return session.Key{}, noKey()
	}
	k, err := keyOf(rev, record)
	if err != nil {
		return session.Key{}, failed(err)
	}
	return k, nil
}

const saveKey = `
UPDATE keys SET rev = rev + 1, tenant = ?3, expires = ?4, record = ?5 WHERE id = ?1 AND rev = ?2 AND expires > ?6`

// SaveKey replaces a key; see [session.Keys].
func (s *Store) SaveKey(ctx context.Context, k session.Key) error {
	record, err := session.MarshalKey(k)
	if err != nil {
		return err
	}
	changed, err := s.write(ctx, saveKey, k.ID, k.Rev, k.Tenant, expiry(k.Expires), record, now())
	if err != nil || changed > 0 {
		return err
	}
	if _, err := s.Key(ctx, k.ID); err != nil {
		return err
	}
	return session.Errorf(session.Conflict, "the key has been changed since it was read; read it again")
}

const listKeys = `
SELECT rev, record FROM keys WHERE (?1 = '' OR tenant = ?1) AND id > ?2 AND expires > ?3 ORDER BY id LIMIT ?4`

// ListKeys returns keys; see [session.Keys].
func (s *Store) ListKeys(ctx context.Context, tenant, after string, limit int) ([]session.Key, error) {
	var list []session.Key
	err := s.rows(ctx, listKeys, []any{tenant, after, now(), max(limit, 0)}, func(scan func(...any) error) (bool, error) {
		var rev int64
		var record []byte
		if err := scan(&rev, &record); err != nil {
			return false, err
		}
		k, err := keyOf(rev, record)
		list = append(list, k)
		return true, err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
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

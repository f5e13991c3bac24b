package sqlitestore

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

const putEntryTicket = `INSERT OR REPLACE INTO entry_tickets (hash, expires, record) VALUES (?, ?, ?)`

// PutEntryTicket implements [storage.Keys].
func (s *Store) PutEntryTicket(ctx context.Context, t storage.EntryTicket) error {
	record, err := storage.Marshal(t)
	if err != nil {
		return err
	}
	if _, err = s.write(ctx, putEntryTicket, t.Hash, expiry(t.Expires), record); err == nil {
		s.tidy(ctx)
	}
	return err
}

const takeEntryTicket = `DELETE FROM entry_tickets WHERE hash = ? RETURNING expires > ?, record`

// TakeEntryTicket returns a ticket and removes it; see [storage.Keys].
func (s *Store) TakeEntryTicket(ctx context.Context, hash string) (storage.EntryTicket, error) {
	var alive bool
	var record []byte
	found, err := s.take(ctx, takeEntryTicket, []any{hash, now()}, []any{&alive, &record})
	if err != nil {
		return storage.EntryTicket{}, err
	}
	if !found || !alive {
		return storage.EntryTicket{}, storage.Errorf(storage.NotFound, "there is no such ticket, or it has expired")
	}
	t, err := storage.Unmarshal[storage.EntryTicket](record)
	if err != nil {
		return storage.EntryTicket{}, failed(err)
	}
	return t, nil
}

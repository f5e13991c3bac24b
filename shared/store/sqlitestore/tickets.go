package sqlitestore

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/core/session"
)

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

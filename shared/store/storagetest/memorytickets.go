package storagetest

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// PutEntryTicket implements storage.Keys.
func (m *Memory) PutEntryTicket(_ context.Context, t storage.EntryTicket) error {
	m.lock()
	defer m.mu.Unlock()
	m.tickets[t.Hash] = t
	return nil
}

// TakeEntryTicket implements storage.Keys.
func (m *Memory) TakeEntryTicket(_ context.Context, hash string) (storage.EntryTicket, error) {
	now := m.lock()
	defer m.mu.Unlock()
	t, ok := m.tickets[hash]
	delete(m.tickets, hash)
	if !ok || !alive(t.Expires, now) {
		return storage.EntryTicket{}, storage.Errorf(storage.NotFound, "there is no such ticket")
	}
	return t, nil
}

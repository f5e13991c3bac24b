package sessiontest

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/core/session"
)

// PutEntryTicket implements session.Keys.
func (m *Memory) PutEntryTicket(_ context.Context, t session.EntryTicket) error {
	m.lock()
	defer m.mu.Unlock()
	m.tickets[t.Hash] = t
	return nil
}

// TakeEntryTicket implements session.Keys.
func (m *Memory) TakeEntryTicket(_ context.Context, hash string) (session.EntryTicket, error) {
	now := m.lock()
	defer m.mu.Unlock()
	t, ok := m.tickets[hash]
	delete(m.tickets, hash)
	if !ok || !alive(t.Expires, now) {
		return session.EntryTicket{}, session.Errorf(session.NotFound, "there is no such ticket")
	}
	return t, nil
}

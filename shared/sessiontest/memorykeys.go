package sessiontest

import (
	"bytes"
	"context"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// CreateKey implements session.Keys.
func (m *Memory) CreateKey(_ context.Context, v session.Key) error { return m.keys.create(m, v) }

// Key implements session.Keys.
func (m *Memory) Key(_ context.Context, id string) (session.Key, error) {
	return m.keys.read(m, id)
}

// SaveKey implements session.Keys.
func (m *Memory) SaveKey(_ context.Context, v session.Key) error { return m.keys.save(m, v) }

// ListKeys implements session.Keys.
func (m *Memory) ListKeys(_ context.Context, tenant, after string, limit int) ([]session.Key, error) {
	return m.keys.list(m, tenant, after, limit), nil
}

func keysCollection() *collection[session.Key] {
	return newCollection("key", cloneKey, keyFields)
}

func keyFields(v *session.Key) fields { return fields{v.ID, &v.Rev, &v.Tenant, &v.Expires} }

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

func cloneKey(k session.Key) session.Key {
	k.Hash, k.Servers, k.Props = bytes.Clone(k.Hash), slices.Clone(k.Servers), bytes.Clone(k.Props)
	return k
}

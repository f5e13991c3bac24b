package sessiontest

import (
	"bytes"
	"context"
	"maps"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// CreateKey implements session.Keys.
func (m *Memory) CreateKey(_ context.Context, k session.Key) error {
	now := m.lock()
	defer m.mu.Unlock()
	if old, ok := m.keys[k.ID]; ok && alive(old.Expires, now) {
		return session.Errorf(session.Conflict, "key %s is there already", k.ID)
	}
	k.Rev = 1
	m.keys[k.ID] = cloneKey(k)
	return nil
}

// Key implements session.Keys.
func (m *Memory) Key(_ context.Context, id string) (session.Key, error) {
	now := m.lock()
	defer m.mu.Unlock()
	k, ok := m.keys[id]
	if !ok || !alive(k.Expires, now) {
		return session.Key{}, session.Errorf(session.NotFound, "there is no key %s", id)
	}
	return cloneKey(k), nil
}

// SaveKey implements session.Keys.
func (m *Memory) SaveKey(_ context.Context, k session.Key) error {
	now := m.lock()
	defer m.mu.Unlock()
	old, ok := m.keys[k.ID]
	if !ok || !alive(old.Expires, now) {
		return session.Errorf(session.NotFound, "there is no key %s", k.ID)
	}
	if old.Rev != k.Rev {
		return session.Errorf(session.Conflict, "key %s has revision %d, not %d", k.ID, old.Rev, k.Rev)
	}
	k.Rev++
	m.keys[k.ID] = cloneKey(k)
	return nil
}

// ListKeys implements session.Keys.
func (m *Memory) ListKeys(_ context.Context, tenant, after string, limit int) ([]session.Key, error) {
	now := m.lock()
	defer m.mu.Unlock()
	var out []session.Key
	for _, id := range slices.Sorted(maps.Keys(m.keys)) {
		k := m.keys[id]
		if len(out) < limit && id > after && alive(k.Expires, now) && (tenant == "" || k.Tenant == tenant) {
			out = append(out, cloneKey(k))
		}
	}
	return out, nil
}

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

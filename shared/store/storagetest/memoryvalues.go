package storagetest

import (
	"bytes"
	"context"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// stateKey returns the key of m.states for k. It is the same for equal instants in Since.
func stateKey(k storage.ValueKey) storage.ValueKey {
	if !k.Since.IsZero() {
		k.Since = time.UnixMilli(k.Since.UnixMilli()).UTC()
	}
	return k
}

// state returns a durable value, with Rev 0 if there is none. The caller must hold m.mu.
func (m *Memory) state(k storage.ValueKey, now time.Time) storage.Value {
	v, ok := m.states[stateKey(k)]
	if !ok || !alive(v.Expires, now) {
		v = storage.Value{}
	}
	v.Key, v.Data = k, bytes.Clone(v.Data)
	return v
}

// LoadValue implements storage.Values.
func (m *Memory) LoadValue(_ context.Context, k storage.ValueKey) (storage.Value, error) {
	if err := k.Check(); err != nil {
		return storage.Value{}, err
	}
	now := m.lock()
	defer m.mu.Unlock()
	return m.state(k, now), nil
}

// SaveValue implements storage.Values.
func (m *Memory) SaveValue(_ context.Context, v storage.Value) (storage.Value, error) {
	if err := v.Check(); err != nil {
		return storage.Value{}, err
	}
	now := m.lock()
	defer m.mu.Unlock()
	if old := m.state(v.Key, now); old.Rev != v.Rev {
		return old, storage.Errorf(storage.Conflict, "the durable value %q has revision %d, not %d", v.Key.Name, old.Rev, v.Rev)
	}
	if len(v.Data) == 0 {
		delete(m.states, stateKey(v.Key))
		return storage.Value{Key: v.Key}, nil
	}
	v.Rev, v.Data = storage.NextRev(v.Rev), bytes.Clone(v.Data)
	m.states[stateKey(v.Key)] = v
	v.Data = bytes.Clone(v.Data)
	return v, nil
}

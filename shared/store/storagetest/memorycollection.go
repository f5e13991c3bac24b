package storagetest

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// collection is a [storage.Collection] of a Memory. It keeps records as JSON, as the drivers do.
type collection[T any] struct {
	m    *Memory
	kind storage.Kind[T]
	rows map[string]storedRecord
}

type storedRecord struct {
	rev     int64
	tenant  string
	expires time.Time
	record  []byte
}

func newCollection[T any](m *Memory, kind storage.Kind[T]) *collection[T] {
	return &collection[T]{m, kind, map[string]storedRecord{}}
}

// Keys implements storage.Keys.
func (m *Memory) Keys() storage.Collection[storage.Key] { return m.keys }

// Grants implements storage.Grants.
func (m *Memory) Grants() storage.Collection[storage.Grant] { return m.grants }

// UpstreamTokens implements storage.UpstreamTokens.
func (m *Memory) UpstreamTokens() storage.Collection[storage.UpstreamToken] { return m.upstreamTokens }

func (c *collection[T]) Create(_ context.Context, v T) error {
	now := c.m.lock()
	defer c.m.mu.Unlock()
	f := c.kind.Fields(&v)
	if old, ok := c.rows[f.ID]; ok && alive(old.expires, now) {
		return c.kind.Taken()
	}
	return c.put(v, 1)
}

func (c *collection[T]) put(v T, rev int64) error {
	record, err := c.kind.Marshal(v)
	if err == nil {
		f := c.kind.Fields(&v)
		c.rows[f.ID] = storedRecord{rev, *f.Tenant, *f.Expires, record}
	}
	return err
}

func (c *collection[T]) Get(_ context.Context, id string) (v T, err error) {
	now := c.m.lock()
	defer c.m.mu.Unlock()
	r, ok := c.rows[id]
	if !ok || !alive(r.expires, now) {
		return v, c.kind.None()
	}
	return c.kind.Unmarshal(r.record, r.rev)
}

func (c *collection[T]) Save(_ context.Context, v T) error {
	now := c.m.lock()
	defer c.m.mu.Unlock()
	f := c.kind.Fields(&v)
	old, ok := c.rows[f.ID]
	if !ok || !alive(old.expires, now) {
		return c.kind.None()
	}
	if old.rev != *f.Rev {
		return c.kind.Changed()
	}
	return c.put(v, old.rev+1)
}

func (c *collection[T]) List(_ context.Context, tenant, after string, limit int) (list []T, err error) {
	now := c.m.lock()
	defer c.m.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(c.rows)) {
		r := c.rows[id]
		if len(list) >= limit || id <= after || !alive(r.expires, now) || tenant != "" && r.tenant != tenant {
			continue
		}
		v, err := c.kind.Unmarshal(r.record, r.rev)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

package sessiontest

import (
	"maps"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// collection keeps the records of one kind that have an id and a Rev and are listed in
// order of their ids.
type collection[T any] struct {
	what   string
	rows   map[string]T
	clone  func(T) T
	fields func(*T) fields
}

// fields are those fields of a record that the store uses.
type fields struct {
	id      string
	rev     *int64
	tenant  *string
	expires *time.Time
}

func newCollection[T any](what string, clone func(T) T, of func(*T) fields) *collection[T] {
	return &collection[T]{what, map[string]T{}, clone, of}
}

func (c *collection[T]) create(m *Memory, v T) error {
	now := m.lock()
	defer m.mu.Unlock()
	f := c.fields(&v)
	if old, ok := c.rows[f.id]; ok && alive(*c.fields(&old).expires, now) {
		return session.Errorf(session.Conflict, "%s %s is there already", c.what, f.id)
	}
	*f.rev = 1
	c.rows[f.id] = c.clone(v)
	return nil
}

// find returns a record that has not expired. The caller holds the lock.
func (c *collection[T]) find(id string, now time.Time) (T, error) {
	v, ok := c.rows[id]
	if !ok || !alive(*c.fields(&v).expires, now) {
		var none T
		return none, session.Errorf(session.NotFound, "there is no %s %s", c.what, id)
	}
	return v, nil
}

func (c *collection[T]) read(m *Memory, id string) (T, error) {
	now := m.lock()
	defer m.mu.Unlock()
	v, err := c.find(id, now)
	if err != nil {
		return v, err
	}
	return c.clone(v), nil
}

func (c *collection[T]) save(m *Memory, v T) error {
	now := m.lock()
	defer m.mu.Unlock()
	f := c.fields(&v)
	old, err := c.find(f.id, now)
	if err != nil {
		return err
	}
	if rev := *c.fields(&old).rev; rev != *f.rev {
		return session.Errorf(session.Conflict, "%s %s has revision %d, not %d", c.what, f.id, rev, *f.rev)
	}
	*f.rev++
	c.rows[f.id] = c.clone(v)
	return nil
}

func (c *collection[T]) list(m *Memory, tenant, after string, limit int) (out []T) {
	now := m.lock()
	defer m.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(c.rows)) {
		v := c.rows[id]
		f := c.fields(&v)
		if len(out) < limit && id > after && alive(*f.expires, now) && (tenant == "" || *f.tenant == tenant) {
			out = append(out, c.clone(v))
		}
	}
	return out
}

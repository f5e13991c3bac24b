package sqlitestore

import (
	"context"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// collection keeps the records of one kind that have an id and a Rev: API keys, grants,
// upstream tokens. It lists them in the order of their ids. Each kind has a table, and
// each record is one row of it.
type collection[T any] struct {
	table     string
	what      string // in texts of errors
	marshal   func(T) ([]byte, error)
	unmarshal func([]byte) (T, error)
	fields    func(*T) fields
}

// fields are those fields of a record that the store uses.
type fields struct {
	id      string
	rev     *int64
	tenant  string
	expires time.Time
}

func (c collection[T]) of(rev int64, record []byte) (T, error) {
	v, err := c.unmarshal(record)
	*c.fields(&v).rev = rev
	return v, err
}

func (c collection[T]) creating() string {
	return `INSERT INTO ` + c.table + ` (id, rev, tenant, expires, record) VALUES (?1, 1, ?2, ?3, ?4)
ON CONFLICT (id) DO UPDATE SET rev = 1, tenant = ?2, expires = ?3, record = ?4 WHERE expires <= ?5`
}

// create stores a new record with Rev 1.
func (c collection[T]) create(ctx context.Context, s *Store, v T) error {
	record, err := c.marshal(v)
	if err != nil {
		return err
	}
	f := c.fields(&v)
	changed, err := s.write(ctx, c.creating(), f.id, f.tenant, expiry(f.expires), record, now())
	switch {
	case err == nil && changed > 0:
		s.tidy(ctx)
	case err == nil:
		err = session.Errorf(session.Conflict, "there is a %s with this id already", c.what)
	}
	return err
}

func (c collection[T]) reading() string {
	return `SELECT rev, record FROM ` + c.table + ` WHERE id = ? AND expires > ?`
}

func (c collection[T]) read(ctx context.Context, s *Store, id string) (T, error) {
	var zero T
	var rev int64
	var record []byte
	found, err := s.row(ctx, c.reading(), []any{id, now()}, []any{&rev, &record})
	if err != nil {
		return zero, err
	}
	if !found {
		return zero, session.Errorf(session.NotFound, "there is no such %s, or it has expired", c.what)
	}
	v, err := c.of(rev, record)
	if err != nil {
		return zero, failed(err)
	}
	return v, nil
}

func (c collection[T]) saving() string {
	return `UPDATE ` + c.table + ` SET rev = rev + 1, tenant = ?3, expires = ?4, record = ?5 WHERE id = ?1 AND rev = ?2 AND expires > ?6`
}

// save replaces a record if the stored Rev equals that of v, and stores Rev+1.
func (c collection[T]) save(ctx context.Context, s *Store, v T) error {
	record, err := c.marshal(v)
	if err != nil {
		return err
	}
	f := c.fields(&v)
	changed, err := s.write(ctx, c.saving(), f.id, *f.rev, f.tenant, expiry(f.expires), record, now())
	if err != nil || changed > 0 {
		return err
	}
	if _, err := c.read(ctx, s, f.id); err != nil {
		return err
	}
	return session.Errorf(session.Conflict, "the %s has been changed since it was read; read it again", c.what)
}

func (c collection[T]) listing() string {
	return `SELECT rev, record FROM ` + c.table + ` WHERE (?1 = '' OR tenant = ?1) AND id > ?2 AND expires > ?3 ORDER BY id LIMIT ?4`
}

// list returns the records of a tenant, or of all tenants for "".
func (c collection[T]) list(ctx context.Context, s *Store, tenant, after string, limit int) ([]T, error) {
	return listOf(ctx, s, c.listing(), []any{tenant, after, now(), max(limit, 0)}, func(scan func(...any) error) (v T, err error) {
		var rev int64
		var record []byte
		if err := scan(&rev, &record); err != nil {
			return v, err
		}
		return c.of(rev, record)
	})
}

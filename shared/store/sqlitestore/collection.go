package sqlitestore

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// collection is a [storage.Collection] with a table, in which each record is one row.
type collection[T any] struct {
	s     *Store
	table string
	kind  storage.Kind[T]
}

// Keys implements [storage.Keys].
func (s *Store) Keys() storage.Collection[storage.Key] {
	return collection[storage.Key]{s, "keys", storage.KeyKind()}
}

// Grants implements [storage.Grants].
func (s *Store) Grants() storage.Collection[storage.Grant] {
	return collection[storage.Grant]{s, "grants", storage.GrantKind()}
}

// UpstreamTokens implements [storage.UpstreamTokens].
func (s *Store) UpstreamTokens() storage.Collection[storage.UpstreamToken] {
	return collection[storage.UpstreamToken]{s, "upstream_tokens", storage.UpstreamTokenKind()}
}

func (c collection[T]) Create(ctx context.Context, v T) error {
	record, err := c.kind.Marshal(v)
	if err != nil {
		return err
	}
	f := c.kind.Fields(&v)
	changed, err := c.s.write(ctx, `INSERT INTO `+c.table+` (id, rev, tenant, expires, record) VALUES (?1, 1, ?2, ?3, ?4)
ON CONFLICT (id) DO UPDATE SET rev = 1, tenant = ?2, expires = ?3, record = ?4 WHERE expires <= ?5`,
		f.ID, *f.Tenant, expiry(*f.Expires), record, now())
	switch {
	case err == nil && changed > 0:
		c.s.tidy(ctx)
	case err == nil:
		err = c.kind.Taken()
	}
	return err
}

func readRecord(table string) string {
	return `SELECT rev, record FROM ` + table + ` WHERE id = ? AND expires > ?`
}

func (c collection[T]) Get(ctx context.Context, id string) (T, error) {
	var none T
	var rev int64
	var record []byte
	found, err := c.s.row(ctx, readRecord(c.table), []any{id, now()}, []any{&rev, &record})
	if err != nil {
		return none, err
	}
	if !found {
		return none, c.kind.None()
	}
	v, err := c.kind.Unmarshal(record, rev)
	if err != nil {
		return none, failed(err)
	}
	return v, nil
}

func (c collection[T]) Save(ctx context.Context, v T) error {
	record, err := c.kind.Marshal(v)
	if err != nil {
		return err
	}
	f := c.kind.Fields(&v)
	changed, err := c.s.write(ctx, `UPDATE `+c.table+` SET rev = rev + 1, tenant = ?3, expires = ?4, record = ?5 WHERE id = ?1 AND rev = ?2 AND expires > ?6`,
		f.ID, *f.Rev, *f.Tenant, expiry(*f.Expires), record, now())
	if err != nil || changed > 0 {
		return err
	}
	if _, err := c.Get(ctx, f.ID); err != nil {
		return err
	}
	return c.kind.Changed()
}

func (c collection[T]) List(ctx context.Context, tenant, after string, limit int) ([]T, error) {
	query := `SELECT rev, record FROM ` + c.table + ` WHERE (?1 = '' OR tenant = ?1) AND id > ?2 AND expires > ?3 ORDER BY id LIMIT ?4`
	return listOf(ctx, &c.s.database, query, []any{tenant, after, now(), max(limit, 0)}, func(scan func(...any) error) (v T, err error) {
		var rev int64
		var record []byte
		if err := scan(&rev, &record); err != nil {
			return v, err
		}
		return c.kind.Unmarshal(record, rev)
	})
}

package dynamostore

import (
	"context"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// collection is a [storage.Collection], in which each record is one row. The rows of all
// tenants are together in one partition of the index "tenant".
type collection[T any] struct {
	s *Store
	// name begins the partition key of each row, and is the partition of the index. No
	// tenant has this name.
	name string
	kind storage.Kind[T]
}

// Keys implements [storage.Keys].
func (s *Store) Keys() storage.Collection[storage.Key] {
	return collection[storage.Key]{s, keys, storage.KeyKind()}
}

// Grants implements [storage.Grants].
func (s *Store) Grants() storage.Collection[storage.Grant] {
	return collection[storage.Grant]{s, "G", storage.GrantKind()}
}

// UpstreamTokens implements [storage.UpstreamTokens].
func (s *Store) UpstreamTokens() storage.Collection[storage.UpstreamToken] {
	return collection[storage.UpstreamToken]{s, "U", storage.UpstreamTokenKind()}
}

// partition returns the partition key of a record's row.
func (c collection[T]) partition(id string) string { return c.name + "#" + id }

func (c collection[T]) row(v T) (row, error) {
	f := c.kind.Fields(&v)
	r := key(c.partition(f.ID), "m")
	r["r"], r["T"] = num(*f.Rev), str(c.name)
	r.expire(*f.Expires, 0)
	record, err := c.kind.Marshal(v)
	if err != nil {
		return nil, err
	}
	r.setRecord(record)
	return r, checkInline("the "+c.kind.Name, len(record))
}

func (c collection[T]) of(r row) (T, error) { return c.kind.Unmarshal(r.record(), r.num("r")) }

func (c collection[T]) Create(ctx context.Context, v T) error {
	*c.kind.Fields(&v).Rev = 1
	r, err := c.row(v)
	if err != nil {
		return err
	}
	return c.s.create(ctx, r, c.kind)
}

func (c collection[T]) Get(ctx context.Context, id string) (T, error) {
	var none T
	if len(id) > maxKey {
		return none, c.kind.None()
	}
	r, err := c.s.get(ctx, c.partition(id), "m")
	if err != nil {
		return none, err
	}
	if !r.alive(time.Now()) {
		return none, c.kind.None()
	}
	v, err := c.of(r)
	if err != nil {
		return none, c.s.failed(err)
	}
	return v, nil
}

func (c collection[T]) Save(ctx context.Context, v T) error {
	rev := *c.kind.Fields(&v).Rev
	*c.kind.Fields(&v).Rev++
	r, err := c.row(v)
	if err != nil {
		return err
	}
	_, err = c.s.replace(ctx, r, rev, c.kind)
	return err
}

func (c collection[T]) List(ctx context.Context, tenant, after string, limit int) ([]T, error) {
	keys := func(after string, _ int) (names []string, err error) {
		err = c.s.queryTenant(ctx, c.name, after, maxGet, func(r row) bool {
			names = append(names, r.str("PK"))
			return len(names) < maxGet
		})
		return names, err
	}
	return list(ctx, &c.s.requests, c.partition(after), limit, keys, func(r row) (T, bool, error) {
		v, err := c.of(r)
		return v, tenant == "" || *c.kind.Fields(&v).Tenant == tenant, err
	})
}

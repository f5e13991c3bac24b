package intercept

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Keys implements storage.Store.
func (s *Store) Keys() storage.Collection[storage.Key] {
	return collection[storage.Key]{s, "Key", s.inner.Keys}
}

// Grants implements storage.Store.
func (s *Store) Grants() storage.Collection[storage.Grant] {
	return collection[storage.Grant]{s, "Grant", s.inner.Grants}
}

// UpstreamTokens implements storage.Store.
func (s *Store) UpstreamTokens() storage.Collection[storage.UpstreamToken] {
	return collection[storage.UpstreamToken]{s, "UpstreamToken", s.inner.UpstreamTokens}
}

// collection calls s.around for each call of a collection of the inner store. kind is the part of
// [Call].Method that names the collection, such as "Key" in "CreateKey".
type collection[T any] struct {
	s     *Store
	kind  string
	inner func() storage.Collection[T]
}

func (c collection[T]) Create(ctx context.Context, v T) error {
	return change(ctx, c.s, "Create"+c.kind, v, func(ctx context.Context) error { return c.inner().Create(ctx, v) })
}

func (c collection[T]) Get(ctx context.Context, id string) (T, error) {
	return read(ctx, c.s, c.kind, func(ctx context.Context) (T, error) { return c.inner().Get(ctx, id) })
}

func (c collection[T]) Save(ctx context.Context, v T) error {
	return change(ctx, c.s, "Save"+c.kind, v, func(ctx context.Context) error { return c.inner().Save(ctx, v) })
}

func (c collection[T]) List(ctx context.Context, tenant, after string, limit int) ([]T, error) {
	return read(ctx, c.s, "List"+c.kind+"s", func(ctx context.Context) ([]T, error) {
		return c.inner().List(ctx, tenant, after, limit)
	})
}

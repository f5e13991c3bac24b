package dynamostore

import (
	"context"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// collection keeps the records of one kind that have an id and a Rev: API keys, grants,
// upstream tokens. It lists them in the order of their ids. Each record is one row. The
// rows of all tenants are together in one partition of the index "tenant".
type collection[T any] struct {
	// name begins the partition key of each row, and is the partition of the index. No
	// tenant has this name.
	name      string
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

// partition returns the partition key of a record's row.
func (c collection[T]) partition(id string) string { return c.name + "#" + id }

func (c collection[T]) row(v T) (row, error) {
	f := c.fields(&v)
	r := key(c.partition(f.id), "m")
	r["r"], r["T"] = num(*f.rev), str(c.name)
	r.expire(f.expires, 0)
	record, err := c.marshal(v)
	if err != nil {
		return nil, err
	}
	r.setRecord(record)
	return r, checkInline("the "+c.what, len(record))
}

func (c collection[T]) of(r row) (T, error) {
	v, err := c.unmarshal(r.record())
	*c.fields(&v).rev = r.num("r")
	return v, err
}

func (c collection[T]) none() error {
	return session.Errorf(session.NotFound, "there is no such %s, or it has expired", c.what)
}

// create stores a new record with Rev 1.
func (c collection[T]) create(ctx context.Context, s *Store, v T) error {
	*c.fields(&v).rev = 1
	r, err := c.row(v)
	if err != nil {
		return err
	}
	_, written, err := s.put(ctx, r, isFree, nowValue())
	if err == nil && !written {
		err = session.Errorf(session.Conflict, "there is a %s with this id already", c.what)
	}
	return err
}

func (c collection[T]) read(ctx context.Context, s *Store, id string) (T, error) {
	var zero T
	if len(id) > maxKey {
		return zero, c.none()
	}
	r, err := s.get(ctx, c.partition(id), "m")
	if err != nil {
		return zero, err
	}
	if !r.alive(time.Now()) {
		return zero, c.none()
	}
	v, err := c.of(r)
	if err != nil {
		return zero, s.failed(err)
	}
	return v, nil
}

// save replaces a record if the stored Rev equals that of v, and stores Rev+1.
func (c collection[T]) save(ctx context.Context, s *Store, v T) error {
	values := nowValue()
	rev := c.fields(&v).rev
	values[":rev"] = num(*rev)
	*rev++
	r, err := c.row(v)
	if err != nil {
		return err
	}
	old, written, err := s.put(ctx, r, "r = :rev AND (attribute_not_exists(u) OR u > :now)", values)
	switch {
	case err != nil || written:
		return err
	case !old.alive(time.Now()):
		return c.none()
	}
	return session.Errorf(session.Conflict, "the %s has been changed since it was read; read it again", c.what)
}

// list returns the records of a tenant, or of all tenants for "". It may miss records
// that were created a moment ago.
func (c collection[T]) list(ctx context.Context, s *Store, tenant, after string, limit int) ([]T, error) {
	var list []T
	for len(list) < limit {
		var asked []row
		err := s.queryTenant(ctx, c.name, c.partition(after), maxGet, func(r row) bool {
			asked = append(asked, key(r.str("PK"), "m"))
			return len(asked) < maxGet
		})
		if err != nil || len(asked) == 0 {
			return list, err
		}
		after = asked[len(asked)-1].str("PK")[len(c.partition("")):]
		rows, err := s.getMany(ctx, asked)
		if err != nil {
			return nil, err
		}
		if list, err = c.appendRows(s, list, rows, tenant); err != nil {
			return nil, err
		}
	}
	return list[:max(limit, 0)], nil
}

// appendRows appends the records of a tenant that have not expired, in order.
func (c collection[T]) appendRows(s *Store, list []T, rows []row, tenant string) ([]T, error) {
	slices.SortFunc(rows, func(a, b row) int { return compare(a, b, "PK") })
	for _, r := range rows {
		if !r.alive(time.Now()) {
			continue
		}
		v, err := c.of(r)
		if err != nil {
			return nil, s.failed(err)
		}
		if tenant == "" || c.fields(&v).tenant == tenant {
			list = append(list, v)
		}
	}
	return list, nil
}

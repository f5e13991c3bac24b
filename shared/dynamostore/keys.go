package dynamostore

import (
	"context"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

func keyKey(id string) string { return "K#" + id }

// allKeys is the partition of the index "tenant" that holds the API keys of all
// tenants together: they are few, and no tenant has this name.
const allKeys = "K"

func keyRow(k session.Key) (row, error) {
	r := key(keyKey(k.ID), "m")
	r["r"], r["T"] = num(k.Rev), str(allKeys)
	r.expire(k.Expires, 0)
	record, err := session.MarshalKey(k)
	if err != nil {
		return nil, err
	}
	r.setRecord(record)
	return r, checkInline("the key", len(record))
}

func keyOf(r row) (session.Key, error) {
	k, err := session.UnmarshalKey(r.record())
	k.Rev = r.num("r")
	return k, err
}

func noKey() error {
	return session.Errorf(session.NotFound, "there is no such key, or it has expired")
}

// CreateKey stores a new key; see [session.Keys].
func (s *Store) CreateKey(ctx context.Context, k session.Key) error {
	k.Rev = 1
	r, err := keyRow(k)
	if err != nil {
		return err
	}
	_, written, err := s.put(ctx, r, isFree, nowValue())
	if err == nil && !written {
		err = session.Errorf(session.Conflict, "there is a key with this id already")
	}
	return err
}

// Key reads a key; see [session.Keys].
func (s *Store) Key(ctx context.Context, id string) (session.Key, error) {
	if len(id) > maxKey {
		return session.Key{}, noKey()
	}
	r, err := s.get(ctx, keyKey(id), "m")
	if err != nil {
		return session.Key{}, err
	}
	if !r.alive(time.Now()) {
		return session.Key{}, noKey()
	}
	k, err := keyOf(r)
	if err != nil {
		return session.Key{}, s.failed(err)
	}
	return k, nil
}

// SaveKey replaces a key; see [session.Keys].
func (s *Store) SaveKey(ctx context.Context, k session.Key) error {
	rev := k.Rev
	k.Rev++
	r, err := keyRow(k)
	if err != nil {
		return err
	}
	values := nowValue()
	values[":rev"] = num(rev)
	old, written, err := s.put(ctx, r, "r = :rev AND (attribute_not_exists(u) OR u > :now)", values)
	switch {
	case err != nil || written:
		return err
	case !old.alive(time.Now()):
		return noKey()
	}
	return session.Errorf(session.Conflict, "the key has been changed since it was read; read it again")
}

// ListKeys returns keys; see [session.Keys]. It may miss keys that were created a
// moment ago.
func (s *Store) ListKeys(ctx context.Context, tenant, after string, limit int) ([]session.Key, error) {
	var list []session.Key
	for len(list) < limit {
		var asked []row
		err := s.queryTenant(ctx, allKeys, keyKey(after), maxGet, func(r row) bool {
			asked = append(asked, key(r.str("PK"), "m"))
			return len(asked) < maxGet
		})
		if err != nil || len(asked) == 0 {
			return list, err
		}
		after = asked[len(asked)-1].str("PK")[len(keyKey("")):]
		rows, err := s.getMany(ctx, asked)
		if err != nil {
			return nil, err
		}
		if list, err = s.appendKeys(list, rows, tenant); err != nil {
			return nil, err
		}
	}
	return list[:max(limit, 0)], nil
}

// appendKeys appends the keys of a tenant that have not expired, in order.
func (s *Store) appendKeys(list []session.Key, rows []row, tenant string) ([]session.Key, error) {
	slices.SortFunc(rows, func(a, b row) int { return compare(a, b, "PK") })
	for _, r := range rows {
		if !r.alive(time.Now()) {
			continue
		}
		k, err := keyOf(r)
		if err != nil {
			return nil, s.failed(err)
		}
		if tenant == "" || k.Tenant == tenant {
			list = append(list, k)
		}
	}
	return list, nil
}

// PutEntryTicket keeps a ticket; see [session.Keys].
func (s *Store) PutEntryTicket(ctx context.Context, t session.EntryTicket) error {
	record, err := session.MarshalEntryTicket(t)
	if err != nil {
		return err
	}
	return s.putRecord(ctx, key(keyKey(t.Hash), "t"), record, t.Expires)
}

// TakeEntryTicket returns a ticket and removes it; see [session.Keys]. If the answer
// to the removal is lost and the driver repeats it, TakeEntryTicket returns NotFound,
// because it cannot tell which caller removed the ticket.
func (s *Store) TakeEntryTicket(ctx context.Context, hash string) (session.EntryTicket, error) {
	gone := session.Errorf(session.NotFound, "there is no such ticket, or it has expired")
	if len(hash) > maxKey {
		return session.EntryTicket{}, gone
	}
	r, err := s.remove(ctx, key(keyKey(hash), "t"), "attribute_exists(PK)", nil)
	if err != nil {
		return session.EntryTicket{}, err
	}
	if !r.alive(time.Now()) {
		return session.EntryTicket{}, gone
	}
	t, err := session.UnmarshalEntryTicket(r.record())
	if err != nil {
		return session.EntryTicket{}, s.failed(err)
	}
	return t, nil
}

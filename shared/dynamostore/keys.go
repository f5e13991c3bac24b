package dynamostore

import (
	"context"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// keys returns the collection of keys.
func keys() collection[session.Key] {
	return collection[session.Key]{
		name: "K", what: "key", marshal: session.MarshalKey, unmarshal: session.UnmarshalKey,
		fields: func(k *session.Key) fields { return fields{k.ID, &k.Rev, k.Tenant, k.Expires} },
	}
}

// CreateKey stores a new key; see [session.Keys].
func (s *Store) CreateKey(ctx context.Context, k session.Key) error {
	return keys().create(ctx, s, k)
}

// Key reads a key; see [session.Keys].
func (s *Store) Key(ctx context.Context, id string) (session.Key, error) {
	return keys().read(ctx, s, id)
}

// SaveKey replaces a key; see [session.Keys].
func (s *Store) SaveKey(ctx context.Context, k session.Key) error {
	return keys().save(ctx, s, k)
}

// ListKeys returns keys; see [session.Keys]. It may miss keys that were created a
// moment ago.
func (s *Store) ListKeys(ctx context.Context, tenant, after string, limit int) ([]session.Key, error) {
	return keys().list(ctx, s, tenant, after, limit)
}

// PutEntryTicket keeps a ticket; see [session.Keys].
func (s *Store) PutEntryTicket(ctx context.Context, t session.EntryTicket) error {
	record, err := session.MarshalEntryTicket(t)
	if err != nil {
		return err
	}
	return s.putRecord(ctx, key(keys().partition(t.Hash), "t"), record, t.Expires)
}

// TakeEntryTicket returns a ticket and removes it; see [session.Keys]. If the answer
// to the removal is lost and the driver repeats it, TakeEntryTicket returns NotFound,
// because it cannot tell which caller removed the ticket.
func (s *Store) TakeEntryTicket(ctx context.Context, hash string) (session.EntryTicket, error) {
	gone := session.Errorf(session.NotFound, "there is no such ticket, or it has expired")
	if len(hash) > maxKey {
		return session.EntryTicket{}, gone
	}
	r, err := s.remove(ctx, key(keys().partition(hash), "t"), "attribute_exists(PK)", nil)
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

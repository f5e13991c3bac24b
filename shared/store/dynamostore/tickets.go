package dynamostore

import (
	"context"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/session"
)

// keys is the name of the collection of keys, whose partitions have the tickets too.
const keys = "K"

// PutEntryTicket keeps a ticket; see [session.Keys].
func (s *Store) PutEntryTicket(ctx context.Context, t session.EntryTicket) error {
	record, err := session.MarshalEntryTicket(t)
	if err != nil {
		return err
	}
	return s.putRecord(ctx, key(keys+"#"+t.Hash, "t"), record, t.Expires)
}

// TakeEntryTicket returns a ticket and removes it; see [session.Keys]. If the answer
// to the removal is lost and the driver repeats it, TakeEntryTicket returns NotFound,
// because it cannot tell which caller removed the ticket.
func (s *Store) TakeEntryTicket(ctx context.Context, hash string) (session.EntryTicket, error) {
	gone := session.Errorf(session.NotFound, "there is no such ticket, or it has expired")
	if len(hash) > maxKey {
		return session.EntryTicket{}, gone
	}
	r, err := s.remove(ctx, key(keys+"#"+hash, "t"), "attribute_exists(PK)", nil)
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

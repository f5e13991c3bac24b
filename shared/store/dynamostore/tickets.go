package dynamostore

import (
	"context"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// keys is the name of the collection of keys. The partition keys of tickets begin with it, too.
const keys = "K"

// PutEntryTicket implements [storage.Keys].
func (s *Store) PutEntryTicket(ctx context.Context, t storage.EntryTicket) error {
	record, err := storage.Marshal(t)
	if err != nil {
		return err
	}
	return s.putRecord(ctx, key(keys+"#"+t.Hash, "t"), record, t.Expires)
}

// TakeEntryTicket returns a ticket and removes it; see [storage.Keys]. If the answer
// to the removal is lost and the driver repeats it, TakeEntryTicket returns NotFound,
// because it cannot tell which caller removed the ticket.
func (s *Store) TakeEntryTicket(ctx context.Context, hash string) (storage.EntryTicket, error) {
	gone := storage.Errorf(storage.NotFound, "there is no such ticket, or it has expired")
	if len(hash) > maxKey {
		return storage.EntryTicket{}, gone
	}
	r, err := s.remove(ctx, key(keys+"#"+hash, "t"), "attribute_exists(PK)", nil)
	if err != nil {
		return storage.EntryTicket{}, err
	}
	if !r.alive(time.Now()) {
		return storage.EntryTicket{}, gone
	}
	t, err := storage.Unmarshal[storage.EntryTicket](r.record())
	if err != nil {
		return storage.EntryTicket{}, s.failed(err)
	}
	return t, nil
}

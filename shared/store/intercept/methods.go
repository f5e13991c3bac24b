package intercept

import (
	"context"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Create implements storage.Store.
func (s *Store) Create(ctx context.Context, v storage.Session) error {
	return change(ctx, s, "Create", v, func(ctx context.Context) error { return s.inner.Create(ctx, v) })
}

// Load implements storage.Store.
func (s *Store) Load(ctx context.Context, id storage.ID, box storage.BoxID) (storage.Session, storage.Box, error) {
	got, err := read(ctx, s, "Load", func(ctx context.Context) (got Loaded, err error) {
		got.Session, got.Box, err = s.inner.Load(ctx, id, box)
		return got, err
	})
	return got.Session, got.Box, err
}

// Save implements storage.Store.
func (s *Store) Save(ctx context.Context, v storage.Session) error {
	return change(ctx, s, "Save", v, func(ctx context.Context) error { return s.inner.Save(ctx, v) })
}

// List implements storage.Store.
func (s *Store) List(ctx context.Context, tenant string, after storage.ID, limit int) ([]storage.Session, error) {
	return read(ctx, s, "List", func(ctx context.Context) ([]storage.Session, error) {
		return s.inner.List(ctx, tenant, after, limit)
	})
}

// PutAnswer implements storage.Store.
func (s *Store) PutAnswer(ctx context.Context, v storage.Answer) (bool, error) {
	return write(ctx, s, "PutAnswer", v, func(ctx context.Context) (bool, error) {
		return s.inner.PutAnswer(ctx, v)
	})
}

// Answers implements storage.Store.
func (s *Store) Answers(ctx context.Context, id storage.ID, questions []string) ([]storage.Answer, error) {
	return result(ctx, s, Call{Method: "Answers", Kind: Read, In: questions}, func(ctx context.Context) ([]storage.Answer, error) {
		return s.inner.Answers(ctx, id, questions)
	})
}

// SaveHandshake implements storage.Store.
func (s *Store) SaveHandshake(ctx context.Context, v storage.Handshake) error {
	return change(ctx, s, "SaveHandshake", v, func(ctx context.Context) error { return s.inner.SaveHandshake(ctx, v) })
}

// Recorded implements storage.Store.
func (s *Store) Recorded(ctx context.Context, keys []storage.RecordKey) ([]storage.Recorded, error) {
	return read(ctx, s, "Recorded", func(ctx context.Context) ([]storage.Recorded, error) {
		return s.inner.Recorded(ctx, keys)
	})
}

// ListHandshakes implements storage.Store.
func (s *Store) ListHandshakes(ctx context.Context, digest, prefix string) ([]storage.Handshake, error) {
	return read(ctx, s, "ListHandshakes", func(ctx context.Context) ([]storage.Handshake, error) {
		return s.inner.ListHandshakes(ctx, digest, prefix)
	})
}

// Handshake implements storage.Store.
func (s *Store) Handshake(ctx context.Context, digest, version string) (storage.Handshake, error) {
	return read(ctx, s, "Handshake", func(ctx context.Context) (storage.Handshake, error) {
		return s.inner.Handshake(ctx, digest, version)
	})
}

// PutConnection implements storage.Store.
func (s *Store) PutConnection(ctx context.Context, v storage.Connection) error {
	return change(ctx, s, "PutConnection", v, func(ctx context.Context) error { return s.inner.PutConnection(ctx, v) })
}

// Connection implements storage.Store.
func (s *Store) Connection(ctx context.Context, id string) (storage.Connection, error) {
	return read(ctx, s, "Connection", func(ctx context.Context) (storage.Connection, error) {
		return s.inner.Connection(ctx, id)
	})
}

// DeleteConnection implements storage.Store.
func (s *Store) DeleteConnection(ctx context.Context, id string) error {
	return change(ctx, s, "DeleteConnection", nil, func(ctx context.Context) error { return s.inner.DeleteConnection(ctx, id) })
}

// PutEntryTicket implements storage.Store.
func (s *Store) PutEntryTicket(ctx context.Context, v storage.EntryTicket) error {
	return change(ctx, s, "PutEntryTicket", v, func(ctx context.Context) error { return s.inner.PutEntryTicket(ctx, v) })
}

// TakeEntryTicket implements storage.Store.
func (s *Store) TakeEntryTicket(ctx context.Context, hash string) (storage.EntryTicket, error) {
	return write(ctx, s, "TakeEntryTicket", nil, func(ctx context.Context) (storage.EntryTicket, error) {
		return s.inner.TakeEntryTicket(ctx, hash)
	})
}

// LoadValue implements storage.Store.
func (s *Store) LoadValue(ctx context.Context, key storage.ValueKey) (storage.Value, error) {
	return read(ctx, s, "LoadValue", func(ctx context.Context) (storage.Value, error) {
		return s.inner.LoadValue(ctx, key)
	})
}

// SaveValue implements storage.Store.
func (s *Store) SaveValue(ctx context.Context, v storage.Value) (storage.Value, error) {
	return write(ctx, s, "SaveValue", v, func(ctx context.Context) (storage.Value, error) {
		return s.inner.SaveValue(ctx, v)
	})
}

// Append implements storage.Store.
func (s *Store) Append(ctx context.Context, v storage.Batch) error {
	return change(ctx, s, "Append", v, func(ctx context.Context) error { return s.inner.Append(ctx, v) })
}

// Read implements storage.Store.
func (s *Store) Read(ctx context.Context, id storage.ID, stream storage.StreamID, after storage.Index, limit int) (storage.Page, error) {
	return read(ctx, s, "Read", func(ctx context.Context) (storage.Page, error) {
		return s.inner.Read(ctx, id, stream, after, limit)
	})
}

// Tail implements storage.Store.
func (s *Store) Tail(ctx context.Context, id storage.ID, stream storage.StreamID) (storage.Tail, error) {
	return read(ctx, s, "Tail", func(ctx context.Context) (storage.Tail, error) {
		return s.inner.Tail(ctx, id, stream)
	})
}

// Newest implements storage.Store.
func (s *Store) Newest(ctx context.Context, id storage.ID) (storage.StreamID, error) {
	return read(ctx, s, "Newest", func(ctx context.Context) (storage.StreamID, error) {
		return s.inner.Newest(ctx, id)
	})
}

// Wait implements storage.Store.
func (s *Store) Wait(ctx context.Context, id storage.ID, stream storage.StreamID, after storage.Index, until time.Time) (storage.Page, error) {
	return result(ctx, s, Call{Method: "Wait", Kind: Wait}, func(ctx context.Context) (storage.Page, error) {
		return s.inner.Wait(ctx, id, stream, after, until)
	})
}

// Box implements storage.Store.
func (s *Store) Box(ctx context.Context, id storage.BoxID) (storage.Box, error) {
	return read(ctx, s, "Box", func(ctx context.Context) (storage.Box, error) {
		return s.inner.Box(ctx, id)
	})
}

// SaveBox implements storage.Store.
func (s *Store) SaveBox(ctx context.Context, v storage.Box) error {
	return change(ctx, s, "SaveBox", v, func(ctx context.Context) error { return s.inner.SaveBox(ctx, v) })
}

// Due implements storage.Store.
func (s *Store) Due(ctx context.Context) ([]storage.BoxID, error) {
	return read(ctx, s, "Due", func(ctx context.Context) ([]storage.BoxID, error) {
		return s.inner.Due(ctx)
	})
}

// PutItem implements storage.Store.
func (s *Store) PutItem(ctx context.Context, v storage.Item) (bool, error) {
	return write(ctx, s, "PutItem", v, func(ctx context.Context) (bool, error) {
		return s.inner.PutItem(ctx, v)
	})
}

// Claim implements storage.Store.
func (s *Store) Claim(ctx context.Context, box storage.BoxID, id storage.StreamID, gen storage.Generation) (storage.Item, error) {
	return write(ctx, s, "Claim", nil, func(ctx context.Context) (storage.Item, error) {
		return s.inner.Claim(ctx, box, id, gen)
	})
}

// SwapItem implements storage.Store.
func (s *Store) SwapItem(ctx context.Context, was, v storage.Item) (bool, error) {
	return write(ctx, s, "SwapItem", v, func(ctx context.Context) (bool, error) {
		return s.inner.SwapItem(ctx, was, v)
	})
}

// Item implements storage.Store.
func (s *Store) Item(ctx context.Context, box storage.BoxID, id storage.StreamID) (storage.Item, error) {
	return read(ctx, s, "Item", func(ctx context.Context) (storage.Item, error) {
		return s.inner.Item(ctx, box, id)
	})
}

// Items implements storage.Store.
func (s *Store) Items(ctx context.Context, box storage.BoxID) ([]storage.Item, error) {
	return read(ctx, s, "Items", func(ctx context.Context) ([]storage.Item, error) {
		return s.inner.Items(ctx, box)
	})
}

// DeleteItem implements storage.Store.
func (s *Store) DeleteItem(ctx context.Context, box storage.BoxID, id storage.StreamID, gen storage.Generation) error {
	return change(ctx, s, "DeleteItem", nil, func(ctx context.Context) error { return s.inner.DeleteItem(ctx, box, id, gen) })
}

// PutPart implements storage.Store.
func (s *Store) PutPart(ctx context.Context, v storage.Part) error {
	return change(ctx, s, "PutPart", v, func(ctx context.Context) error { return s.inner.PutPart(ctx, v) })
}

// Parts implements storage.Store.
func (s *Store) Parts(ctx context.Context, box storage.BoxID, frame string) ([]storage.Part, error) {
	return read(ctx, s, "Parts", func(ctx context.Context) ([]storage.Part, error) {
		return s.inner.Parts(ctx, box, frame)
	})
}

package intercept

import (
	"context"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/session"
)

// Create implements session.Store.
func (s *Store) Create(ctx context.Context, v session.Session) error {
	return change(ctx, s, "Create", v, func(ctx context.Context) error { return s.inner.Create(ctx, v) })
}

// Load implements session.Store.
func (s *Store) Load(ctx context.Context, id session.ID, box session.BoxID) (session.Session, session.Box, error) {
	got, err := read(ctx, s, "Load", func(ctx context.Context) (got Loaded, err error) {
		got.Session, got.Box, err = s.inner.Load(ctx, id, box)
		return got, err
	})
	return got.Session, got.Box, err
}

// Save implements session.Store.
func (s *Store) Save(ctx context.Context, v session.Session) error {
	return change(ctx, s, "Save", v, func(ctx context.Context) error { return s.inner.Save(ctx, v) })
}

// List implements session.Store.
func (s *Store) List(ctx context.Context, tenant string, after session.ID, limit int) ([]session.Session, error) {
	return read(ctx, s, "List", func(ctx context.Context) ([]session.Session, error) {
		return s.inner.List(ctx, tenant, after, limit)
	})
}

// PutAnswer implements session.Store.
func (s *Store) PutAnswer(ctx context.Context, v session.Answer) (bool, error) {
	return write(ctx, s, "PutAnswer", v, func(ctx context.Context) (bool, error) {
		return s.inner.PutAnswer(ctx, v)
	})
}

// Answers implements session.Store.
func (s *Store) Answers(ctx context.Context, id session.ID, questions []string) ([]session.Answer, error) {
	return result(ctx, s, Call{Method: "Answers", Kind: Read, In: questions}, func(ctx context.Context) ([]session.Answer, error) {
		return s.inner.Answers(ctx, id, questions)
	})
}

// SaveHandshake implements session.Store.
func (s *Store) SaveHandshake(ctx context.Context, v session.Handshake) error {
	return change(ctx, s, "SaveHandshake", v, func(ctx context.Context) error { return s.inner.SaveHandshake(ctx, v) })
}

// Recorded implements session.Store.
func (s *Store) Recorded(ctx context.Context, keys []session.RecordKey) ([]session.Recorded, error) {
	return read(ctx, s, "Recorded", func(ctx context.Context) ([]session.Recorded, error) {
		return s.inner.Recorded(ctx, keys)
	})
}

// ListHandshakes implements session.Store.
func (s *Store) ListHandshakes(ctx context.Context, digest, prefix string) ([]session.Handshake, error) {
	return read(ctx, s, "ListHandshakes", func(ctx context.Context) ([]session.Handshake, error) {
		return s.inner.ListHandshakes(ctx, digest, prefix)
	})
}

// Handshake implements session.Store.
func (s *Store) Handshake(ctx context.Context, digest, version string) (session.Handshake, error) {
	return read(ctx, s, "Handshake", func(ctx context.Context) (session.Handshake, error) {
		return s.inner.Handshake(ctx, digest, version)
	})
}

// PutConnection implements session.Store.
func (s *Store) PutConnection(ctx context.Context, v session.Connection) error {
	return change(ctx, s, "PutConnection", v, func(ctx context.Context) error { return s.inner.PutConnection(ctx, v) })
}

// Connection implements session.Store.
func (s *Store) Connection(ctx context.Context, id string) (session.Connection, error) {
	return read(ctx, s, "Connection", func(ctx context.Context) (session.Connection, error) {
		return s.inner.Connection(ctx, id)
	})
}

// DeleteConnection implements session.Store.
func (s *Store) DeleteConnection(ctx context.Context, id string) error {
	return change(ctx, s, "DeleteConnection", nil, func(ctx context.Context) error { return s.inner.DeleteConnection(ctx, id) })
}

// PutEntryTicket implements session.Store.
func (s *Store) PutEntryTicket(ctx context.Context, v session.EntryTicket) error {
	return change(ctx, s, "PutEntryTicket", v, func(ctx context.Context) error { return s.inner.PutEntryTicket(ctx, v) })
}

// TakeEntryTicket implements session.Store.
func (s *Store) TakeEntryTicket(ctx context.Context, hash string) (session.EntryTicket, error) {
	return write(ctx, s, "TakeEntryTicket", nil, func(ctx context.Context) (session.EntryTicket, error) {
		return s.inner.TakeEntryTicket(ctx, hash)
	})
}

// LoadValue implements session.Store.
func (s *Store) LoadValue(ctx context.Context, key session.ValueKey) (session.Value, error) {
	return read(ctx, s, "LoadValue", func(ctx context.Context) (session.Value, error) {
		return s.inner.LoadValue(ctx, key)
	})
}

// SaveValue implements session.Store.
func (s *Store) SaveValue(ctx context.Context, v session.Value) (session.Value, error) {
	return write(ctx, s, "SaveValue", v, func(ctx context.Context) (session.Value, error) {
		return s.inner.SaveValue(ctx, v)
	})
}

// Append implements session.Store.
func (s *Store) Append(ctx context.Context, v session.Batch) error {
	return change(ctx, s, "Append", v, func(ctx context.Context) error { return s.inner.Append(ctx, v) })
}

// Read implements session.Store.
func (s *Store) Read(ctx context.Context, id session.ID, stream session.StreamID, after session.Index, limit int) (session.Page, error) {
	return read(ctx, s, "Read", func(ctx context.Context) (session.Page, error) {
		return s.inner.Read(ctx, id, stream, after, limit)
	})
}

// Tail implements session.Store.
func (s *Store) Tail(ctx context.Context, id session.ID, stream session.StreamID) (session.Tail, error) {
	return read(ctx, s, "Tail", func(ctx context.Context) (session.Tail, error) {
		return s.inner.Tail(ctx, id, stream)
	})
}

// Newest implements session.Store.
func (s *Store) Newest(ctx context.Context, id session.ID) (session.StreamID, error) {
	return read(ctx, s, "Newest", func(ctx context.Context) (session.StreamID, error) {
		return s.inner.Newest(ctx, id)
	})
}

// Wait implements session.Store.
func (s *Store) Wait(ctx context.Context, id session.ID, stream session.StreamID, after session.Index, until time.Time) (session.Page, error) {
	return result(ctx, s, Call{Method: "Wait", Kind: Wait}, func(ctx context.Context) (session.Page, error) {
		return s.inner.Wait(ctx, id, stream, after, until)
	})
}

// Box implements session.Store.
func (s *Store) Box(ctx context.Context, id session.BoxID) (session.Box, error) {
	return read(ctx, s, "Box", func(ctx context.Context) (session.Box, error) {
		return s.inner.Box(ctx, id)
	})
}

// SaveBox implements session.Store.
func (s *Store) SaveBox(ctx context.Context, v session.Box) error {
	return change(ctx, s, "SaveBox", v, func(ctx context.Context) error { return s.inner.SaveBox(ctx, v) })
}

// Due implements session.Store.
func (s *Store) Due(ctx context.Context) ([]session.BoxID, error) {
	return read(ctx, s, "Due", func(ctx context.Context) ([]session.BoxID, error) {
		return s.inner.Due(ctx)
	})
}

// PutItem implements session.Store.
func (s *Store) PutItem(ctx context.Context, v session.Item) (bool, error) {
	return write(ctx, s, "PutItem", v, func(ctx context.Context) (bool, error) {
		return s.inner.PutItem(ctx, v)
	})
}

// Claim implements session.Store.
func (s *Store) Claim(ctx context.Context, box session.BoxID, id session.StreamID, gen session.Generation) (session.Item, error) {
	return write(ctx, s, "Claim", nil, func(ctx context.Context) (session.Item, error) {
		return s.inner.Claim(ctx, box, id, gen)
	})
}

// Release implements session.Store.
func (s *Store) Release(ctx context.Context, box session.BoxID, id session.StreamID, gen session.Generation) (bool, error) {
	return write(ctx, s, "Release", nil, func(ctx context.Context) (bool, error) {
		return s.inner.Release(ctx, box, id, gen)
	})
}

// SwapItem implements session.Store.
func (s *Store) SwapItem(ctx context.Context, was, v session.Item) (bool, error) {
	return write(ctx, s, "SwapItem", v, func(ctx context.Context) (bool, error) {
		return s.inner.SwapItem(ctx, was, v)
	})
}

// Item implements session.Store.
func (s *Store) Item(ctx context.Context, box session.BoxID, id session.StreamID) (session.Item, error) {
	return read(ctx, s, "Item", func(ctx context.Context) (session.Item, error) {
		return s.inner.Item(ctx, box, id)
	})
}

// Items implements session.Store.
func (s *Store) Items(ctx context.Context, box session.BoxID) ([]session.Item, error) {
	return read(ctx, s, "Items", func(ctx context.Context) ([]session.Item, error) {
		return s.inner.Items(ctx, box)
	})
}

// DeleteItem implements session.Store.
func (s *Store) DeleteItem(ctx context.Context, box session.BoxID, id session.StreamID, gen session.Generation) error {
	return change(ctx, s, "DeleteItem", nil, func(ctx context.Context) error { return s.inner.DeleteItem(ctx, box, id, gen) })
}

// PutPart implements session.Store.
func (s *Store) PutPart(ctx context.Context, v session.Part) error {
	return change(ctx, s, "PutPart", v, func(ctx context.Context) error { return s.inner.PutPart(ctx, v) })
}

// Parts implements session.Store.
func (s *Store) Parts(ctx context.Context, box session.BoxID, frame string) ([]session.Part, error) {
	return read(ctx, s, "Parts", func(ctx context.Context) ([]session.Part, error) {
		return s.inner.Parts(ctx, box, frame)
	})
}

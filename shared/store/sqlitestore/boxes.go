package sqlitestore

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func boxOf(rev int64, record []byte) (storage.Box, error) {
	b, err := storage.UnmarshalBox(record)
	b.Rev = rev
	return b, err
}

const readBox = `SELECT rev, record FROM boxes WHERE id = ?`

// Box implements [storage.Boxes].
func (s *Store) Box(ctx context.Context, id storage.BoxID) (storage.Box, error) {
	var rev int64
	var record []byte
	found, err := s.row(ctx, readBox, []any{id}, []any{&rev, &record})
	if err != nil {
		return storage.Box{}, err
	}
	if !found {
		return storage.Box{ID: id}, nil
	}
	b, err := boxOf(rev, record)
	if err != nil {
		return storage.Box{}, failed(err)
	}
	return b, nil
}

const (
	createBox = `INSERT INTO boxes (id, rev, state, record) VALUES (?1, ?2 + 1, ?3, ?4) ON CONFLICT (id) DO NOTHING`
	saveBox   = `UPDATE boxes SET rev = rev + 1, state = ?3, record = ?4 WHERE id = ?1 AND rev = ?2`
)

// SaveBox implements [storage.Boxes].
func (s *Store) SaveBox(ctx context.Context, b storage.Box) error {
	record, err := storage.MarshalBox(b)
	if err != nil {
		return err
	}
	query := saveBox
	if b.Rev == 0 {
		query = createBox
	}
	defer s.records.forget("", b.ID)
	changed, err := s.writeSoon(ctx, query, b.ID, b.Rev, b.State, record)
	if err != nil {
		return err
	}
	if changed == 0 {
		return storage.Errorf(storage.Conflict, "the box record has been changed since it was read; read it again")
	}
	return nil
}

const putItem = `
INSERT INTO items (box, id, state, gen, record, raw) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (box, id) DO NOTHING`

// PutItem implements [storage.Items].
func (s *Store) PutItem(ctx context.Context, it storage.Item) (put bool, err error) {
	record, err := storage.MarshalItem(it)
	if err != nil {
		return false, err
	}
	changed, err := s.writeSoon(ctx, putItem, it.Box, it.ID, it.State, it.Gen, record, it.Raw)
	if err != nil || changed == 0 {
		return false, err
	}
	s.waiters.wake(it.Address.Session, it.ID, news{})
	s.tidy(ctx)
	return true, nil
}

const claimItem = `
UPDATE items SET state = 'taken', gen = ?3
WHERE box = ?1 AND id = ?2 AND (state = 'waiting' OR state = 'taken' AND gen = ?3)
RETURNING record, raw`

// Claim takes an item; see [storage.Items].
func (s *Store) Claim(ctx context.Context, box storage.BoxID, id storage.StreamID, gen storage.Generation) (storage.Item, error) {
	it := storage.Item{Box: box, ID: id, State: storage.Taken, Gen: gen}
	var record []byte
	claimed, err := s.take(ctx, claimItem, []any{box, id, gen}, []any{&record, &it.Raw})
	if err != nil {
		return storage.Item{}, err
	}
	if !claimed {
		if _, err := s.Item(ctx, box, id); err != nil {
			return storage.Item{}, err
		}
		return storage.Item{}, storage.Errorf(storage.Conflict, "another generation of the box has taken this message")
	}
	if err := storage.UnmarshalItem(record, &it); err != nil {
		return storage.Item{}, failed(err)
	}
	s.waiters.wake(it.Address.Session, id, news{})
	return it, nil
}

// Item.Round is in the JSON of record. The CAST is for records that were stored as a blob.
const swapItem = `
UPDATE items SET state = ?3, gen = ?4, record = ?5, raw = ?6
WHERE box = ?1 AND id = ?2 AND state = ?7 AND gen = ?8 AND coalesce(json_extract(CAST(record AS TEXT), '$.Round'), 0) = ?9`

// SwapItem implements [storage.Items].
func (s *Store) SwapItem(ctx context.Context, was, it storage.Item) (swapped bool, err error) {
	record, err := storage.MarshalItem(it)
	if err != nil {
		return false, err
	}
	changed, err := s.write(ctx, swapItem, it.Box, it.ID, it.State, it.Gen, record, it.Raw, was.State, was.Gen, was.Round)
	if err != nil || changed == 0 {
		return false, err
	}
	s.waiters.wake(it.Address.Session, it.ID, news{})
	return true, nil
}

const readItem = `SELECT state, gen, record, raw FROM items WHERE box = ? AND id = ?`

// Item implements [storage.Items].
func (s *Store) Item(ctx context.Context, box storage.BoxID, id storage.StreamID) (storage.Item, error) {
	it := storage.Item{Box: box, ID: id}
	var record []byte
	found, err := s.row(ctx, readItem, []any{box, id}, []any{&it.State, &it.Gen, &record, &it.Raw})
	if err != nil {
		return storage.Item{}, err
	}
	if !found {
		return storage.Item{}, storage.Errorf(storage.NotFound, "nothing is on its way to the box under this id")
	}
	if err := storage.UnmarshalItem(record, &it); err != nil {
		return storage.Item{}, failed(err)
	}
	return it, nil
}

const readItems = `SELECT id, state, gen, record FROM items WHERE box = ? ORDER BY id`

// Items implements [storage.Items].
func (s *Store) Items(ctx context.Context, box storage.BoxID) ([]storage.Item, error) {
	return listOf(ctx, &s.database, readItems, []any{box}, func(scan func(...any) error) (it storage.Item, err error) {
		it.Box = box
		var record []byte
		if err = scan(&it.ID, &it.State, &it.Gen, &record); err == nil {
			err = storage.UnmarshalItem(record, &it)
		}
		return it, err
	})
}

const deleteItem = `DELETE FROM items WHERE box = ?1 AND id = ?2 AND (?3 = 0 OR state = 'taken' AND gen = ?3)`

// DeleteItem implements [storage.Items].
func (s *Store) DeleteItem(ctx context.Context, box storage.BoxID, id storage.StreamID, gen storage.Generation) error {
	_, err := s.writeSoon(ctx, deleteItem, box, id, gen)
	return err
}

const dueBoxes = `SELECT id FROM boxes WHERE state <> '' UNION SELECT box FROM items ORDER BY 1`

// Due returns the boxes the sweep has to look at; see [storage.Boxes].
func (s *Store) Due(ctx context.Context) ([]storage.BoxID, error) {
	return listOf(ctx, &s.database, dueBoxes, nil, func(scan func(...any) error) (id storage.BoxID, err error) {
		err = scan(&id)
		return id, err
	})
}

const putPart = `INSERT OR REPLACE INTO parts (box, frame, n, expires, data) VALUES (?, ?, ?, ?, ?)`

// PutPart implements [storage.Parts]. It returns TooLarge for more
// than 128 KiB.
func (s *Store) PutPart(ctx context.Context, p storage.Part) error {
	if len(p.Data) > storage.MaxPart {
		return storage.Errorf(storage.TooLarge, "a part of a relay frame has %d bytes; at most %d are kept", len(p.Data), storage.MaxPart)
	}
	_, err := s.writeSoon(ctx, putPart, p.Box, p.Frame, p.N, expiry(p.Expires), p.Data)
	if err == nil {
		s.tidy(ctx)
	}
	return err
}

const readParts = `SELECT n, expires, data FROM parts WHERE box = ? AND frame = ? AND expires > ? ORDER BY n`

// Parts implements [storage.Parts].
func (s *Store) Parts(ctx context.Context, box storage.BoxID, frame string) ([]storage.Part, error) {
	return listOf(ctx, &s.database, readParts, []any{box, frame, now()}, func(scan func(...any) error) (p storage.Part, err error) {
		p.Box, p.Frame = box, frame
		var expires int64
		err = scan(&p.N, &expires, &p.Data)
		p.Expires = expiryOf(expires)
		return p, err
	})
}

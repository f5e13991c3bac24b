package dynamostore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func boxOf(r row) (storage.Box, error) {
	b, err := storage.UnmarshalBox(r.record())
	b.Rev = r.num("r")
	return b, err
}

// Box implements [storage.Boxes].
func (s *Store) Box(ctx context.Context, id storage.BoxID) (storage.Box, error) {
	r, err := s.get(ctx, boxKey(id), "m")
	if err != nil || r == nil {
		return storage.Box{ID: id}, err
	}
	b, err := boxOf(r)
	if err != nil {
		return storage.Box{}, s.failed(err)
	}
	return b, nil
}

// SaveBox implements [storage.Boxes].
func (s *Store) SaveBox(ctx context.Context, b storage.Box) error {
	condition, values := "attribute_not_exists(PK)", row(nil)
	if b.Rev != 0 {
		condition, values = "r = :rev", row{":rev": num(b.Rev)}
	}
	b.Rev++
	r := key(boxKey(b.ID), "m")
	r["r"] = num(b.Rev)
	if b.State != storage.Asleep {
		r["D"] = str(b.ID)
	}
	record, err := storage.MarshalBox(b)
	if err != nil {
		return err
	}
	r.setRecord(record)
	_, written, err := s.put(ctx, r, condition, values)
	if err == nil && !written {
		err = storage.Errorf(storage.Conflict, "the box record has been changed since it was read; read it again")
	}
	return err
}

func itemRow(it storage.Item) (row, error) {
	record, err := storage.MarshalItem(it)
	r := key(boxKey(it.Box), itemKey(it.ID))
	r["D"], r["s"], r["g"] = str(it.Box), str(it.State), num(it.Gen)
	if it.Round > 0 {
		r["n"] = num(it.Round)
	}
	r.setRecord(record)
	return r, err
}

// itemOf returns an item without its raw message.
func itemOf(box storage.BoxID, r row) (storage.Item, error) {
	it := storage.Item{
		Box: box, ID: storage.StreamID(r.str("SK")[len(itemKey("")):]), State: storage.ItemState(r.str("s")),
		Gen: storage.Generation(r.num("g")),
	}
	err := storage.UnmarshalItem(r.record(), &it)
	return it, err
}

// wholeItem returns an item with its raw message.
func (s *Store) wholeItem(ctx context.Context, box storage.BoxID, r row) (storage.Item, error) {
	it, err := itemOf(box, r)
	if err != nil {
		return storage.Item{}, s.failed(err)
	}
	if it.Raw, err = s.raw(ctx, r); err != nil {
		return storage.Item{}, err
	}
	return it, nil
}

// partsLife is how long the parts of a long message are kept if nothing deletes them
// earlier. Nothing deletes them if their item was not written, was not fully deleted, or
// stays open for this long.
const partsLife = 30 * 24 * time.Hour

// PutItem implements [storage.Items].
func (s *Store) PutItem(ctx context.Context, it storage.Item) (put bool, err error) {
	r, err := itemRow(it)
	if err != nil {
		return false, err
	}
	if err := s.spill(ctx, r, it.Raw, time.Now().Add(partsLife)); err != nil {
		return false, err
	}
	_, put, err = s.put(ctx, r, "attribute_not_exists(PK)", nil)
	return put, err
}

// Claim takes an item; see [storage.Items].
func (s *Store) Claim(ctx context.Context, box storage.BoxID, id storage.StreamID, gen storage.Generation) (storage.Item, error) {
	r, claimed, err := s.update(ctx, key(boxKey(box), itemKey(id)), "SET s = :taken, g = :gen", "s = :waiting OR s = :taken AND g = :gen",
		row{":taken": str(storage.Taken), ":waiting": str(storage.Waiting), ":gen": num(gen)})
	switch {
	case err != nil:
		return storage.Item{}, err
	case r == nil:
		return storage.Item{}, noItem()
	case !claimed:
		return storage.Item{}, storage.Errorf(storage.Conflict, "another generation of the box has taken this message")
	}
	return s.wholeItem(ctx, box, r)
}

// SwapItem implements [storage.Items].
func (s *Store) SwapItem(ctx context.Context, was, it storage.Item) (swapped bool, err error) {
	r, err := itemRow(it)
	if err != nil {
		return false, err
	}
	if err := s.spill(ctx, r, it.Raw, time.Now().Add(partsLife)); err != nil {
		return false, err
	}
	condition, values := "s = :state AND g = :gen AND attribute_not_exists(n)", row{":state": str(was.State), ":gen": num(was.Gen)}
	if was.Round > 0 {
		condition, values[":round"] = "s = :state AND g = :gen AND n = :round", num(was.Round)
	}
	old, swapped, err := s.put(ctx, r, condition, values)
	if err != nil || !swapped {
		return false, err
	}
	if old.str("z") != r.str("z") {
		// The new item is stored. If these deletions fail, the parts of the old item
		// expire.
		_ = s.writeMany(ctx, deletions(old))
	}
	return true, nil
}

func noItem() error {
	return storage.Errorf(storage.NotFound, "nothing is on its way to the box under this id")
}

// Item implements [storage.Items].
func (s *Store) Item(ctx context.Context, box storage.BoxID, id storage.StreamID) (storage.Item, error) {
	if len(id) > maxKey { // the client chose the id; DynamoDB refuses a longer key
		return storage.Item{}, noItem()
	}
	r, err := s.get(ctx, boxKey(box), itemKey(id))
	if err != nil {
		return storage.Item{}, err
	}
	if r == nil {
		return storage.Item{}, noItem()
	}
	return s.wholeItem(ctx, box, r)
}

// Items implements [storage.Items].
func (s *Store) Items(ctx context.Context, box storage.BoxID) ([]storage.Item, error) {
	var items []storage.Item
	sp := span{pk: boxKey(box), from: itemKey(""), to: "q$", fields: "SK, s, g, j"}
	err := s.query(ctx, sp, func(r row) (bool, error) {
		it, err := itemOf(box, r)
		if err != nil {
			return false, s.failed(err)
		}
		items = append(items, it)
		return true, nil
	})
	return items, err
}

// DeleteItem implements [storage.Items].
func (s *Store) DeleteItem(ctx context.Context, box storage.BoxID, id storage.StreamID, gen storage.Generation) error {
	condition, values := "", row(nil)
	if gen != 0 {
		condition, values = "s = :taken AND g = :gen", row{":taken": str(storage.Taken), ":gen": num(gen)}
	}
	old, err := s.remove(ctx, key(boxKey(box), itemKey(id)), condition, values)
	if err != nil {
		return err
	}
	// The item is gone. If these deletions fail, its parts expire.
	_ = s.writeMany(ctx, deletions(old))
	return nil
}

// Due returns the boxes the sweep has to look at; see [storage.Boxes]. It may miss
// the newest writes for a moment. It reads the whole index, which holds nothing else.
func (s *Store) Due(ctx context.Context) ([]storage.BoxID, error) {
	var due []storage.BoxID
	err := s.scanIndex(ctx, dueIndex, func(r row) { due = append(due, storage.BoxID(r.str("D"))) })
	slices.Sort(due)
	return slices.Compact(due), err
}

// scanIndex calls visit for every row of an index, in no order.
func (q *requests) scanIndex(ctx context.Context, index string, visit func(row)) error {
	in := &dynamodb.ScanInput{TableName: &q.table, IndexName: &index, ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal}
	for {
		out, err := ask(ctx, q, "Scan", q.client.Scan, in)
		if err != nil {
			return q.failed(err)
		}
		q.count("Scan", unitsOf(out.ConsumedCapacity), 0)
		for _, r := range out.Items {
			visit(r)
		}
		if in.ExclusiveStartKey = out.LastEvaluatedKey; len(in.ExclusiveStartKey) == 0 {
			return nil
		}
	}
}

// partDigits is how many digits a part's number has in a key.
const partDigits = 6

func partPrefix(frame string) string { return "f#" + frame + "#" }

// PutPart implements [storage.Parts]. It returns TooLarge for more
// than 128 KiB.
func (s *Store) PutPart(ctx context.Context, p storage.Part) error {
	if len(p.Data) > storage.MaxPart {
		return storage.Errorf(storage.TooLarge, "a part of a relay frame has %d bytes; at most %d are kept", len(p.Data), storage.MaxPart)
	}
	r := key(boxKey(p.Box), fmt.Sprintf("%s%0*d", partPrefix(p.Frame), partDigits, p.N))
	if p.Data != nil {
		r["d"] = bin(p.Data)
	}
	r.expire(p.Expires, 0)
	_, _, err := s.put(ctx, r, "", nil)
	return err
}

// Parts implements [storage.Parts].
func (s *Store) Parts(ctx context.Context, box storage.BoxID, frame string) ([]storage.Part, error) {
	var parts []storage.Part
	now := time.Now()
	prefix := partPrefix(frame)
	err := s.query(ctx, span{pk: boxKey(box), from: prefix, to: prefix + ":"}, func(r row) (bool, error) {
		n, err := strconv.Atoi(r.str("SK")[len(prefix):])
		if err != nil || !r.alive(now) {
			return true, nil // a part of a frame whose name only begins with this name, or an expired part
		}
		parts = append(parts, storage.Part{Box: box, Frame: frame, N: n, Data: r.bin("d"), Expires: r.expires()})
		return true, nil
	})
	return parts, err
}

package dynamostore

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// stateRow returns the key of a durable value. A session's values are in the session's
// partition; other owners have a partition each. stateRow hashes names that a client or an
// author chose, so that they are never too long and never collide with other keys.
func stateRow(k storage.ValueKey) row {
	sum := func(text string) string {
		h := sha256.Sum256([]byte(text))
		return shortHash(h[:])
	}
	if k.Scope == storage.ValueOfSession {
		return key(sessionKey(storage.ID(k.Of)), fmt.Sprintf("v#%d#%s", k.Since.UnixMilli(), sum(fmt.Sprintf("%q %q %q", k.Tenant, k.Server, k.Name))))
	}
	return key("V#"+sum(fmt.Sprintf("%q %q %q %q", k.Tenant, k.Server, k.Scope, k.Of)), "v#"+sum(k.Name))
}

// LoadValue implements [storage.Values].
func (s *Store) LoadValue(ctx context.Context, k storage.ValueKey) (storage.Value, error) {
	if err := k.Check(); err != nil {
		return storage.Value{}, err
	}
	at := stateRow(k)
	r, err := s.get(ctx, at.str("PK"), at.str("SK"))
	return valueOf(k, r), err
}

// valueOf returns the value in a row. The row may be nil.
func valueOf(k storage.ValueKey, r row) storage.Value {
	if !r.alive(time.Now()) {
		return storage.Value{Key: k}
	}
	return storage.Value{Key: k, Rev: r.num("r"), Data: r.bin("d"), Expires: r.expires()}
}

// SaveValue implements [storage.Values]. To delete a value, it writes a value
// that has already expired. The nonce of the write stays in the row, so SaveValue recognizes a
// repeat whose first answer was lost.
func (s *Store) SaveValue(ctx context.Context, v storage.Value) (storage.Value, error) {
	if err := v.Check(); err != nil {
		return storage.Value{}, err
	}
	was, values := v.Rev, nowValue()
	v.Rev = storage.NextRev(was)
	r, condition := stateRow(v.Key), isFree
	if was != 0 {
		condition, values[":rev"] = isSame, num(was)
	}
	switch {
	case len(v.Data) == 0 && was == 0:
		return s.noState(ctx, v.Key)
	case len(v.Data) == 0:
		v = storage.Value{Key: v.Key}
		r.expire(time.Now().Add(-time.Second), 0)
	case v.Key.Scope == storage.ValueOfSession:
		// prolong postpones this deletion while the session lives.
		r["x"] = num(time.Now().Add(2 * s.options.Life).Unix())
		r["r"], r["d"] = num(v.Rev), bin(v.Data)
	default:
		r.expire(v.Expires, 0)
		r["r"], r["d"] = num(v.Rev), bin(v.Data)
	}
	stored, written, err := s.put(ctx, r, condition, values)
	if err != nil {
		return storage.Value{}, err
	}
	if !written {
		return valueOf(v.Key, stored), changedState(v.Key)
	}
	return v, nil
}

// noState returns the result of a SaveValue that would delete a value without a revision: Conflict if
// the value exists.
func (s *Store) noState(ctx context.Context, k storage.ValueKey) (storage.Value, error) {
	v, err := s.LoadValue(ctx, k)
	if err == nil && v.Rev != 0 {
		err = changedState(k)
	}
	return v, err
}

func changedState(k storage.ValueKey) error {
	return storage.Errorf(storage.Conflict, "the durable value %q has been changed since it was read; read it again", k.Name)
}

// prolongStates keeps the values of a session until the given time; see prolong.
func (s *Store) prolongStates(ctx context.Context, x storage.Session, until types.AttributeValue) {
	begin := fmt.Sprintf("v#%d#", x.Created.UnixMilli())
	sp := span{pk: sessionKey(x.ID), from: begin, to: begin + "~", fields: "PK, SK"}
	_ = s.query(ctx, sp, func(r row) (bool, error) {
		_, _, err := s.update(ctx, key(r.str("PK"), r.str("SK")), "SET x = :until", "x < :until", row{":until": until})
		return err == nil, err
	})
}

package dynamostore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Append implements [storage.Log]. Cost: one request for a batch of up to
// 350 KiB. Append reads the key of a longer batch first, and then writes the batch in
// parts.
func (s *Store) Append(ctx context.Context, b storage.Batch) error {
	data, err := b.Lines()
	if err != nil {
		return err
	}
	r, condition := s.batchRow(b, data), isFree
	if b.Stream == storage.Standalone {
		condition = "attribute_not_exists(PK)" // the standalone stream lives as long as its session does
	}
	if len(data) > maxInline {
		old, err := s.get(ctx, r.str("PK"), r.str("SK"))
		if err != nil {
			return err
		}
		if old != nil && (b.Stream == storage.Standalone || old.alive(time.Now())) {
			return sameBatch(old, r, b)
		}
	}
	if err := s.spill(ctx, r, data, outlive(r.expires())); err != nil {
		return err
	}
	var values row
	if condition == isFree {
		values = nowValue()
	}
	old, written, err := s.put(ctx, r, condition, values)
	if err != nil {
		return err
	}
	if !written {
		return sameBatch(old, r, b)
	}
	s.bound(ctx, b, len(data))
	return nil
}

func (s *Store) batchRow(b storage.Batch, data []byte) row {
	hash := sha256.Sum256(data)
	r := key(sessionKey(b.Session), eventKey(b.Stream, b.First))
	r["n"], r["g"], r["q"] = num(len(b.Events)), num(b.Gen), num(b.Seq)
	r["b"], r["h"] = num(len(data)), bin(hash[:])
	if b.Final {
		r["f"] = &types.AttributeValueMemberBOOL{Value: true}
	}
	if b.Retry > 0 {
		r["w"] = num(b.Retry.Milliseconds())
	}
	expires := time.Now().Add(s.options.Age)
	if !b.Expires.IsZero() && b.Expires.Before(expires) {
		expires = b.Expires
	}
	keep := time.Duration(0)
	if b.Stream == storage.Standalone {
		keep = s.options.Life
	}
	r.expire(expires, keep)
	return r
}

// sameBatch returns Conflict if the stored batch differs from the batch to write. For equal
// batches, it returns the result of [storage.Batch.Repeated].
func sameBatch(old, r row, b storage.Batch) error {
	if old.num("g") != r.num("g") || old.num("q") != r.num("q") || old.flag("f") != r.flag("f") ||
		old.num("w") != r.num("w") || !bytes.Equal(old.bin("h"), r.bin("h")) {
		return storage.Errorf(storage.Conflict, "index %d of the stream is written already", firstOf(r))
	}
	return b.Repeated()
}

// tailFields are the attributes of a batch without its data.
const tailFields = "PK, SK, n, g, q, f, u"

// tailSpan returns a stream's span for a query that begins at its end. The first request
// reads only the last batch.
func tailSpan(id storage.ID, stream storage.StreamID) span {
	return span{
		pk: sessionKey(id), from: eventKey(stream, 0), to: lastKey(stream),
		backwards: true, limit: 1, fields: tailFields,
	}
}

// Tail returns the last batch of a stream; see [storage.Log]. For the standalone stream, Tail
// answers as long as the session lives, even when the stream's events have expired, so that the
// stream never uses an index twice.
func (s *Store) Tail(ctx context.Context, id storage.ID, stream storage.StreamID) (storage.Tail, error) {
	var t storage.Tail
	if len(stream) > maxKey { // the client chose the id; DynamoDB refuses a longer key
		return t, nil
	}
	now := time.Now()
	sp := tailSpan(id, stream)
	err := s.query(ctx, sp, func(r row) (bool, error) {
		if stream != storage.Standalone && !r.alive(now) {
			return true, nil
		}
		t = storage.Tail{Last: lastOf(r), Gen: storage.Generation(r.num("g")), Seq: r.num("q"), Final: r.flag("f")}
		return false, nil
	})
	return t, err
}

// Newest returns the request stream that began last; see [storage.Log].
func (s *Store) Newest(ctx context.Context, id storage.ID) (storage.StreamID, error) {
	stream := storage.Standalone
	now := time.Now()
	sp := span{pk: sessionKey(id), from: "e#", to: "e$", backwards: true, limit: 1, fields: tailFields}
	err := s.query(ctx, sp, func(r row) (bool, error) {
		of := streamOf(r)
		if of == storage.Standalone { // the standalone stream sorts before all others
			return false, nil
		}
		if r.alive(now) {
			stream = of
			return false, nil
		}
		return true, nil
	})
	return stream, err
}

// prolong postpones the deletion of a session's durable values, and of the last batch of its
// standalone stream, which holds the next index. It acts on a Save that moves the session's expiry by
// an hour or more, once the session is older than Age. The new time is Life after the expiry, so that
// a later Save can make up for a failed prolong.
func (s *Store) prolong(ctx context.Context, x storage.Session, old row) {
	if time.Since(x.Created) < s.options.Age || x.Expires.IsZero() || x.Expires.Sub(old.expires()) < time.Hour {
		return
	}
	until := num(x.Expires.Add(s.options.Life).Unix())
	s.prolongStates(ctx, x, until)
	sp := tailSpan(x.ID, storage.Standalone)
	_ = s.query(ctx, sp, func(r row) (bool, error) {
		_, _, err := s.update(ctx, key(r.str("PK"), r.str("SK")), "SET x = :until", "x < :until", row{":until": until})
		return false, err
	})
}

package dynamostore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Append writes a batch; see [session.Log]. One request for a batch of up to
// 350 KiB; a longer one is looked for first and then written in parts.
func (s *Store) Append(ctx context.Context, b session.Batch) error {
	data, err := b.Lines()
	if err != nil {
		return err
	}
	r, condition := s.batchRow(b, data), isFree
	if b.Stream == session.Common {
		condition = "attribute_not_exists(PK)" // it goes on for as long as its session
	}
	if len(data) > maxInline {
		old, err := s.get(ctx, r.str("PK"), r.str("SK"))
		if err != nil {
			return err
		}
		if old != nil && (b.Stream == session.Common || old.alive(time.Now())) {
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

// batchRow is a batch as it is stored, without its data.
func (s *Store) batchRow(b session.Batch, data []byte) row {
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
	if b.Stream == session.Common {
		keep = s.options.Life
	}
	r.expire(expires, keep)
	return r
}

// sameBatch is nil if the batch that is stored is the one to be written.
func sameBatch(old, r row, b session.Batch) error {
	if old.num("g") != r.num("g") || old.num("q") != r.num("q") || old.flag("f") != r.flag("f") ||
		old.num("w") != r.num("w") || !bytes.Equal(old.bin("h"), r.bin("h")) {
		return session.Errorf(session.Conflict, "index %d of the stream is written already", firstOf(r))
	}
	return b.Repeated()
}

// tailFields are the attributes of a batch without its data.
const tailFields = "PK, SK, n, g, q, f, u"

// tailSpan is a stream from its end, the last batch in a request of its own.
func tailSpan(id session.ID, stream session.StreamID) span {
	return span{
		pk: sessionKey(id), from: eventKey(stream, 0), to: lastKey(stream),
		backwards: true, limit: 1, fields: tailFields,
	}
}

// Tail returns the last batch of a stream; see [session.Log]. That of the common
// stream is known for as long as its session lives, even when its events have
// expired: an index is never given twice.
func (s *Store) Tail(ctx context.Context, id session.ID, stream session.StreamID) (session.Tail, error) {
	var t session.Tail
	if len(stream) > maxKey { // it comes from a client
		return t, nil
	}
	now := time.Now()
	sp := tailSpan(id, stream)
	err := s.query(ctx, sp, func(r row) (bool, error) {
		if stream != session.Common && !r.alive(now) {
			return true, nil
		}
		t = session.Tail{Last: lastOf(r), Gen: session.Generation(r.num("g")), Seq: r.num("q"), Final: r.flag("f")}
		return false, nil
	})
	return t, err
}

// Newest returns the request stream that begun last; see [session.Log].
func (s *Store) Newest(ctx context.Context, id session.ID) (session.StreamID, error) {
	stream := session.Common
	now := time.Now()
	sp := span{pk: sessionKey(id), from: "e#", to: "e$", backwards: true, limit: 1, fields: tailFields}
	err := s.query(ctx, sp, func(r row) (bool, error) {
		of := streamOf(r)
		if of == session.Common { // it sorts before all others
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

// prolong keeps the last batch of a common stream, from which the next index is
// known, and the durable values of a session from being deleted while the session
// lives. They were written with time to spare for the first day of the session;
// after that, whenever the life of the session has been made longer, theirs is.
// What fails here is done the next time, because each time it is done for twice as
// long as it has to be.
func (s *Store) prolong(ctx context.Context, x session.Session, old row) {
	if time.Since(x.Created) < s.options.Age || x.Expires.IsZero() || x.Expires.Sub(old.expires()) < time.Hour {
		return
	}
	until := num(x.Expires.Add(s.options.Life).Unix())
	s.prolongStates(ctx, x, until)
	sp := tailSpan(x.ID, session.Common)
	_ = s.query(ctx, sp, func(r row) (bool, error) {
		_, _, err := s.update(ctx, key(r.str("PK"), r.str("SK")), "SET x = :until", "x < :until", row{":until": until})
		return false, err
	})
}

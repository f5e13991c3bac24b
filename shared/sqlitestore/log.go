package sqlitestore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"math"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Limits of a batch; see [session.Log].
const (
	maxBatchEvents = 1000
	maxBatchBytes  = 16 << 20
)

// maxRead is the most events one Read returns.
const maxRead = 1000

// A row whose stream is not common may be written over once it has expired. The
// common stream goes on for as long as its session, so its indexes stay taken.
const (
	appendBatch = `
INSERT INTO events (session, stream, first, n, gen, seq, final, bytes, written, expires, purge, hash, data)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?10, ?11, ?12)
ON CONFLICT (session, stream, first) DO UPDATE SET
	n = ?4, gen = ?5, seq = ?6, final = ?7, bytes = ?8, written = ?9, expires = ?10, purge = ?10, hash = ?11, data = ?12
WHERE stream <> '' AND expires <= ?9`
	readBatch = `SELECT gen, seq, final, hash FROM events WHERE session = ? AND stream = ? AND first = ?`
)

// Append writes a batch; see [session.Log]. Invalid for a batch without events,
// one that begins before index 1, and an event that is not one line; TooLarge
// over 1,000 events or 16 MiB.
func (s *Store) Append(ctx context.Context, b session.Batch) error {
	data, err := join(b)
	if err != nil {
		return err
	}
	hash, written := sha256.Sum256(data), time.Now()
	expires := min(expiry(b.Expires), written.Add(s.options.Age).UnixMicro())
	for {
		changed, err := s.write(ctx, appendBatch, b.Session, b.Stream, b.First, len(b.Events), b.Gen, b.Seq, b.Final,
			len(data), written.UnixMicro(), expires, hash[:], data)
		if err != nil {
			return err
		}
		if changed > 0 {
			break
		}
		var gen session.Generation
		var seq int64
		var final bool
		var stored []byte
		found, err := s.row(ctx, readBatch, []any{b.Session, b.Stream, b.First}, []any{&gen, &seq, &final, &stored})
		switch {
		case err != nil:
			return err
		case !found:
			continue // it was purged in between
		case gen != b.Gen || seq != b.Seq || final != b.Final || !bytes.Equal(stored, hash[:]):
			return session.Errorf(session.Conflict, "index %d of the stream is written already", b.First)
		}
		break
	}
	s.bells.ring(b.Session, b.Stream)
	s.bound(ctx, b, len(data))
	s.tidy(ctx)
	return nil
}

// join checks a batch and returns its events, one a line.
func join(b session.Batch) ([]byte, error) {
	if b.First < 1 || len(b.Events) == 0 {
		return nil, session.Errorf(session.Invalid, "a batch of %d events at index %d; it must have at least one and begin at 1 or later", len(b.Events), b.First)
	}
	size := len(b.Events) - 1
	for _, e := range b.Events {
		if bytes.IndexByte(e, '\n') >= 0 {
			return nil, session.Errorf(session.Invalid, "an event holds a line feed; an event is one line of JSON")
		}
		size += len(e)
	}
	if len(b.Events) > maxBatchEvents || size-len(b.Events)+1 > maxBatchBytes {
		return nil, session.Errorf(session.TooLarge, "a batch of %d events with %d bytes; the limits are %d events and %d bytes",
			len(b.Events), size, maxBatchEvents, maxBatchBytes)
	}
	data := make([]byte, 0, size)
	for i, e := range b.Events {
		if i > 0 {
			data = append(data, '\n')
		}
		data = append(data, e...)
	}
	return data, nil
}

// The batch that holds the event after the cursor may begin before it: it is the
// last one that does not begin behind that event.
const readEvents = `
SELECT first, n, final, data FROM events
WHERE session = ?1 AND stream = ?2 AND expires > ?4 AND first >= coalesce(
	(SELECT first FROM events WHERE session = ?1 AND stream = ?2 AND first <= ?3 + 1 ORDER BY first DESC LIMIT 1), 0)
ORDER BY first LIMIT ?5`

// Read returns events after a cursor; see [session.Log]. A page ends early, with
// More, when it holds 16 MiB, and before a hole, so that the next page says that
// there is a gap. A limit outside 1 to 1,000 is moved into it.
func (s *Store) Read(ctx context.Context, id session.ID, stream session.StreamID, after session.Index, limit int) (session.Page, error) {
	if after == math.MaxInt64 {
		return session.Page{}, nil // cursors come from clients
	}
	after, limit = max(after, 0), min(max(limit, 1), maxRead)
	var p session.Page
	size := 0
	err := s.rows(ctx, readEvents, []any{id, stream, after, now(), limit + 1}, func(scan func(...any) error) (bool, error) {
		var first session.Index
		var n int
		var final bool
		var data []byte
		if err := scan(&first, &n, &final, &data); err != nil {
			return false, err
		}
		for i := range n {
			var raw []byte
			raw, data, _ = bytes.Cut(data, []byte{'\n'})
			e := session.Event{Index: first + session.Index(i), Raw: raw[:len(raw):len(raw)], Final: final && i == n-1}
			if e.Index <= after {
				continue
			}
			hole := len(p.Events) > 0 && e.Index != p.Events[len(p.Events)-1].Index+1
			if hole || len(p.Events) == limit || size >= maxBatchBytes {
				p.More = true
				return false, nil
			}
			p.Events = append(p.Events, e)
			size += len(raw)
		}
		return true, nil
	})
	if err != nil {
		return session.Page{}, err
	}
	p.Gap = len(p.Events) > 0 && p.Events[0].Index > after+1
	return p, nil
}

const readTail = `
SELECT first + n - 1, gen, seq, final FROM events
WHERE session = ?1 AND stream = ?2 AND (stream = '' OR expires > ?3) ORDER BY first DESC LIMIT 1`

// Tail returns the last batch of a stream; see [session.Log]. That of the common
// stream is known for as long as its session lives, even when its events have
// expired: an index is never given twice.
func (s *Store) Tail(ctx context.Context, id session.ID, stream session.StreamID) (session.Tail, error) {
	var t session.Tail
	_, err := s.row(ctx, readTail, []any{id, stream, now()}, []any{&t.Last, &t.Gen, &t.Seq, &t.Final})
	if err != nil {
		return session.Tail{}, err
	}
	return t, nil
}

const newestStream = `SELECT stream FROM events WHERE session = ? AND stream > '' AND expires > ? ORDER BY stream DESC LIMIT 1`

// Newest returns the request stream that begun last; see [session.Log].
func (s *Store) Newest(ctx context.Context, id session.ID) (session.StreamID, error) {
	stream := session.Common
	_, err := s.row(ctx, newestStream, []any{id, now()}, []any{&stream})
	return stream, err
}

package sqlitestore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"math"
	"runtime"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// An append may overwrite a row of a request stream once the row has expired. It never
// overwrites a row of the standalone stream: that stream lives as long as its session, so its
// indexes stay taken.
//
// Indexes before an existing batch stay taken as well, even if their rows were dropped, because a
// writer that was fenced long ago must meet a conflict. For a batch with a taken index the
// statement makes the column "first" NULL, so SQLite ignores the row. INSERT ... SELECT ... WHERE
// would cost a tenth more, because it uses a temporary table.
const (
	appendBatch = `
INSERT OR IGNORE INTO events (session, stream, first, n, gen, seq, final, bytes, written, expires, purge, hash, data, retry)
VALUES (?1, ?2,
	CASE WHEN EXISTS (SELECT 1 FROM events WHERE session = ?1 AND stream = ?2 AND first > ?3 AND (stream = '' OR expires > ?9)) THEN NULL ELSE ?3 END,
	?4, ?5, ?6, ?7, ?8, ?9, ?10, ?10, ?11, ?12, ?13)
ON CONFLICT (session, stream, first) DO UPDATE SET
	n = ?4, gen = ?5, seq = ?6, final = ?7, bytes = ?8, written = ?9, expires = ?10, purge = ?10, hash = ?11, data = ?12, retry = ?13
WHERE stream <> '' AND expires <= ?9`
	readBatch = `SELECT gen, seq, final, retry, hash FROM events WHERE session = ? AND stream = ? AND first = ?`
)

// Append implements [storage.Log].
func (s *Store) Append(ctx context.Context, b storage.Batch) error {
	data, err := b.Lines()
	if err != nil {
		return err
	}
	hash := sha256.Sum256(data)
	var n news
	var repeated error
	for {
		written := time.Now()
		expires := min(expiry(b.Expires), written.Add(s.options.Age).UnixMicro())
		changed, err := s.writeSoon(ctx, appendBatch, b.Session, b.Stream, b.First, len(b.Events), b.Gen, b.Seq, b.Final,
			len(data), written.UnixMicro(), expires, hash[:], data, b.Retry.Milliseconds())
		if err != nil {
			return err
		}
		if changed > 0 {
			if expires > written.UnixMicro() {
				n = news{b.First, len(b.Events), b.Final, b.Retry.Truncate(time.Millisecond), data}
			}
			break
		}
		var gen storage.Generation
		var seq, retry int64
		var final bool
		var stored []byte
		found, err := s.row(ctx, readBatch, []any{b.Session, b.Stream, b.First}, []any{&gen, &seq, &final, &retry, &stored})
		switch {
		case err != nil:
			return err
		case !found:
			tail, err := s.Tail(ctx, b.Session, b.Stream)
			if err != nil {
				return err
			}
			if tail.Last < b.First {
				continue // another call purged the row in between
			}
			return conflict(b)
		case gen != b.Gen || seq != b.Seq || final != b.Final || retry != b.Retry.Milliseconds() || !bytes.Equal(stored, hash[:]):
			return conflict(b)
		}
		repeated = b.Repeated()
		break
	}
	s.waiters.wake(b.Session, b.Stream, n)
	runtime.Gosched() // lets the waiting call run first, on this processor; to wake another processor takes longer
	s.bound(ctx, b, len(data))
	s.tidy(ctx)
	return repeated
}

func conflict(b storage.Batch) error {
	return storage.Errorf(storage.Conflict, "index %d of the stream is written already", b.First)
}

// The batch with the event after the cursor may begin before that event: it is the last batch that
// begins at the event or earlier.
const readEvents = `
SELECT first, n, final, retry, data FROM events
WHERE session = ?1 AND stream = ?2 AND expires > ?4 AND first >= coalesce(
	(SELECT first FROM events WHERE session = ?1 AND stream = ?2 AND first <= ?3 + 1 ORDER BY first DESC LIMIT 1), 0)
ORDER BY first LIMIT ?5`

// Read returns events after a cursor; see [storage.Log].
func (s *Store) Read(ctx context.Context, id storage.ID, stream storage.StreamID, after storage.Index, limit int) (storage.Page, error) {
	if after == math.MaxInt64 {
		return storage.Page{}, nil // a client may send any cursor; the index after this one would overflow
	}
	after, limit = max(after, 0), min(max(limit, 1), storage.MaxRead)
	p := storage.NewPages(after, limit)
	err := s.rows(ctx, readEvents, []any{id, stream, after, now(), limit + 1}, func(scan func(...any) error) (bool, error) {
		var first storage.Index
		var n int
		var final bool
		var retry int64
		var data blob
		if err := scan(&first, &n, &final, &retry, &data); err != nil {
			return false, err
		}
		wanted, more := p.Wants(first, n)
		if !wanted {
			return more, nil
		}
		return p.Add(first, n, final, time.Duration(retry)*time.Millisecond, data), nil
	})
	if err != nil {
		return storage.Page{}, err
	}
	return p.Page(), nil
}

// blob is a []byte that Scan sets to the driver's slice. Into a plain []byte, database/sql would copy
// that slice.
type blob []byte

// Scan implements sql.Scanner.
func (b *blob) Scan(value any) error {
	data, ok := value.([]byte)
	if !ok {
		return errors.New("the column is no blob")
	}
	*b = data
	return nil
}

const readTail = `
SELECT first + n - 1, gen, seq, final FROM events
WHERE session = ?1 AND stream = ?2 AND (stream = '' OR expires > ?3) ORDER BY first DESC LIMIT 1`

// Tail returns the last batch of a stream; see [storage.Log]. For the standalone stream, Tail
// answers as long as the session lives, even when the stream's events have expired, so that the
// stream never uses an index twice.
func (s *Store) Tail(ctx context.Context, id storage.ID, stream storage.StreamID) (storage.Tail, error) {
	var t storage.Tail
	_, err := s.row(ctx, readTail, []any{id, stream, now()}, []any{&t.Last, &t.Gen, &t.Seq, &t.Final})
	if err != nil {
		return storage.Tail{}, err
	}
	return t, nil
}

const newestStream = `SELECT stream FROM events WHERE session = ? AND stream > '' AND expires > ? ORDER BY stream DESC LIMIT 1`

// Newest returns the request stream that began last; see [storage.Log].
func (s *Store) Newest(ctx context.Context, id storage.ID) (storage.StreamID, error) {
	stream := storage.Standalone
	_, err := s.row(ctx, newestStream, []any{id, now()}, []any{&stream})
	return stream, err
}

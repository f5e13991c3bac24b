package dynamostore

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Read returns events after a cursor; see [storage.Log].
//
// Cost: one request for up to 8 batches and two for more. It takes another request if no
// batch begins right behind the cursor, for each further MB, and for batches in parts.
func (s *Store) Read(ctx context.Context, id storage.ID, stream storage.StreamID, after storage.Index, limit int) (storage.Page, error) {
	r := s.newReader(id, stream, after, "")
	return r.page(ctx, min(max(limit, 1), storage.MaxRead))
}

// Wait waits for something to read; see [storage.Log]. It polls: every 5 to 10 ms at first, then
// after a tenth of the time it has waited, at most a second. It first polls a new stream when
// the stream is 4 ms old.
func (s *Store) Wait(ctx context.Context, id storage.ID, stream storage.StreamID, after storage.Index, until time.Time) (storage.Page, error) {
	r := s.newReader(id, stream, after, "Wait")
	if err := storage.Rest(ctx, min(infant-time.Since(stream.Time()), infant, time.Until(until))); err != nil {
		return storage.Page{}, err
	}
	for begun := time.Now(); ; {
		p, err := r.page(ctx, storage.MaxWait)
		if ctx.Err() != nil {
			return storage.Page{}, ctx.Err()
		}
		now := time.Now()
		if err != nil || len(p.Events) > 0 || !now.Before(until) {
			return p, err
		}
		if err := storage.Rest(ctx, min(pace(now.Sub(begun)), until.Sub(now))); err != nil {
			return storage.Page{}, err
		}
	}
}

// infant is the age of a stream at which Wait polls it for the first time: an answer takes longer,
// three hops and a write. A stream may begin in the future by the clock of this machine, so Wait
// never waits longer than infant before that poll.
const infant = 4 * time.Millisecond

// pace returns the time until the next poll.
func pace(waited time.Duration) time.Duration {
	return min(max(waited/10, 5*time.Millisecond+rand.N(5*time.Millisecond)), time.Second)
}

// reader reads one stream from one cursor, once or until there are events. Cursor and stream
// come from a client and may have any value.
type reader struct {
	store  *Store
	id     storage.ID
	stream storage.StreamID
	after  storage.Index
	as     string // the name under which to count its requests; "" for Query
	// lookBack says that a batch that begins before the cursor may reach beyond it.
	// It is false once a batch is known to end at the cursor, because the next batch
	// then begins right behind it.
	lookBack bool
}

func (s *Store) newReader(id storage.ID, stream storage.StreamID, after storage.Index, as string) *reader {
	after = max(after, 0)
	return &reader{store: s, id: id, stream: stream, after: after, as: as, lookBack: after > 0}
}

// page reads forwards from the index after the cursor. If no batch begins there, it calls
// r.previous. A batch that is written meanwhile either begins at that index, or is read by
// r.previous.
func (r *reader) page(ctx context.Context, limit int) (storage.Page, error) {
	if r.after == math.MaxInt64 || len(r.stream) > maxKey {
		return storage.Page{}, nil
	}
	p := storage.NewPages(r.after, limit)
	looked := !r.lookBack
	rows := 0
	sp := span{
		pk: sessionKey(r.id), from: eventKey(r.stream, r.after+1), to: lastKey(r.stream),
		limit: min(limit+1, firstRows), as: r.as,
		next: func() int { return rowsFor(limit+1-len(p.Page().Events), rows, len(p.Page().Events)) },
	}
	err := r.store.query(ctx, sp, func(it row) (bool, error) {
		rows++
		behind := !looked && firstOf(it) > r.after+1
		looked = true
		if behind {
			if more, err := r.previous(ctx, p); err != nil || !more {
				return false, err
			}
		}
		return r.add(ctx, p, it)
	})
	if err == nil && !looked {
		_, err = r.previous(ctx, p)
	}
	if err != nil {
		return storage.Page{}, err
	}
	return p.Page(), nil
}

// firstRows is how many batches the first request of a page asks for. DynamoDB charges for every
// batch it returns, up to 1 MB, even for those that do not fit on the page.
const firstRows = 8

// rowsFor estimates how many more batches hold the wanted events, from the average of the batches
// so far. These have no events if all were dropped.
func rowsFor(wanted, rows, events int) int {
	if events == 0 {
		return 100
	}
	return min(wanted*rows/events+1, storage.MaxRead+1)
}

// previous reads the batch that holds the event after the cursor, if there is one: the last
// batch that begins at that event or earlier.
func (r *reader) previous(ctx context.Context, p *storage.Pages) (more bool, err error) {
	more = true
	sp := span{
		pk: sessionKey(r.id), from: eventKey(r.stream, 0), to: eventKey(r.stream, r.after+1),
		backwards: true, limit: 1, as: r.as,
	}
	err = r.store.query(ctx, sp, func(it row) (bool, error) {
		r.lookBack = lastOf(it) != r.after
		var err error
		more, err = r.add(ctx, p, it)
		return false, err
	})
	return more, err
}

// add adds the events of a batch to the page.
func (r *reader) add(ctx context.Context, p *storage.Pages, it row) (more bool, err error) {
	if !it.alive(time.Now()) {
		return true, nil
	}
	first, n := firstOf(it), int(it.num("n"))
	if wanted, more := p.Wants(first, n); !wanted {
		return more, nil
	}
	data, ok, err := r.store.data(ctx, it)
	if err != nil || !ok {
		return err == nil, err
	}
	return p.Add(first, n, it.flag("f"), time.Duration(it.num("w"))*time.Millisecond, data), nil
}

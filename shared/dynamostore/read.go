package dynamostore

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// maxRead is the most events one Read returns, waitLimit the most of one Wait.
const (
	maxRead   = 1000
	waitLimit = 100
)

// Read returns events after a cursor; see [session.Log]. A page ends early, with
// More, when it holds 16 MiB, and before events that are gone. A limit outside 1
// to 1,000 is moved into it.
//
// One request, or two when no batch begins right behind the cursor, and further
// ones for each MB and for long batches.
func (s *Store) Read(ctx context.Context, id session.ID, stream session.StreamID, after session.Index, limit int) (session.Page, error) {
	r := s.newReader(id, stream, after, "")
	return r.page(ctx, min(max(limit, 1), maxRead))
}

// Wait waits for something to read; see [session.Log]. It polls: every 5 to 10 ms
// at first, then after a tenth of the time it has waited, at last every second.
func (s *Store) Wait(ctx context.Context, id session.ID, stream session.StreamID, after session.Index, until time.Time) (session.Page, error) {
	r := s.newReader(id, stream, after, "Wait")
	for begun := time.Now(); ; {
		p, err := r.page(ctx, waitLimit)
		if ctx.Err() != nil {
			return session.Page{}, ctx.Err()
		}
		now := time.Now()
		if err != nil || len(p.Events) > 0 || !now.Before(until) {
			return p, err
		}
		timer := time.NewTimer(min(pace(now.Sub(begun)), until.Sub(now)))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return session.Page{}, ctx.Err()
		}
	}
}

// pace is the time to the next poll.
func pace(waited time.Duration) time.Duration {
	return min(max(waited/10, 5*time.Millisecond+rand.N(5*time.Millisecond)), time.Second)
}

// reader reads one stream from one cursor on, once or until there is something.
type reader struct {
	store  *Store
	id     session.ID
	stream session.StreamID
	after  session.Index
	as     string // what its requests count as
	// lookBack: a batch that begins before the cursor may reach beyond it. It
	// cannot once a batch is known to end at the cursor, because the next batch
	// then begins behind it.
	lookBack bool
}

// newReader: the cursor and the stream come from a client.
func (s *Store) newReader(id session.ID, stream session.StreamID, after session.Index, as string) *reader {
	after = max(after, 0)
	return &reader{store: s, id: id, stream: stream, after: after, as: as, lookBack: after > 0}
}

// page reads forwards from the index behind the cursor. If no batch begins there,
// the one before has to be looked at. A batch that is written in between begins
// right behind the cursor, or is found by looking back.
func (r *reader) page(ctx context.Context, limit int) (session.Page, error) {
	if r.after == math.MaxInt64 || len(r.stream) > maxKey {
		return session.Page{}, nil
	}
	c := collector{after: r.after, limit: limit}
	looked := !r.lookBack
	sp := span{
		pk: sessionKey(r.id), from: eventKey(r.stream, r.after+1), to: lastKey(r.stream),
		limit: limit + 1, as: r.as,
	}
	err := r.store.query(ctx, sp, func(it row) (bool, error) {
		behind := !looked && firstOf(it) > r.after+1
		looked = true
		if behind {
			if more, err := r.before(ctx, &c); err != nil || !more {
				return false, err
			}
		}
		return r.add(ctx, &c, it)
	})
	if err == nil && !looked {
		_, err = r.before(ctx, &c)
	}
	if err != nil {
		return session.Page{}, err
	}
	return c.page, nil
}

// before reads the batch that holds the event behind the cursor, if there is one:
// the last that does not begin behind that event.
func (r *reader) before(ctx context.Context, c *collector) (more bool, err error) {
	more = true
	sp := span{
		pk: sessionKey(r.id), from: eventKey(r.stream, 0), to: eventKey(r.stream, r.after+1),
		backwards: true, limit: 1, as: r.as,
	}
	err = r.store.query(ctx, sp, func(it row) (bool, error) {
		r.lookBack = lastOf(it) != r.after
		var err error
		more, err = r.add(ctx, c, it)
		return false, err
	})
	return more, err
}

// add puts the events of a batch on the page.
func (r *reader) add(ctx context.Context, c *collector, it row) (more bool, err error) {
	if !it.alive(time.Now()) || lastOf(it) <= r.after {
		return true, nil
	}
	if c.full() || c.breaks(firstOf(it)) {
		c.page.More = true
		return false, nil
	}
	data, ok, err := r.store.data(ctx, it)
	if err != nil || !ok {
		return err == nil, err
	}
	return c.add(firstOf(it), int(it.num("n")), it.flag("f"), data), nil
}

// collector makes a page out of batches in order.
type collector struct {
	after session.Index
	limit int
	size  int
	page  session.Page
}

func (c *collector) full() bool { return len(c.page.Events) == c.limit || c.size >= maxBatchBytes }

// breaks says that there are events missing between those on the page and first.
// The page has to end before them: only its own front can be a gap.
func (c *collector) breaks(first session.Index) bool {
	n := len(c.page.Events)
	return n > 0 && first > c.page.Events[n-1].Index+1
}

// add takes the events behind the cursor until the page is full.
func (c *collector) add(first session.Index, n int, final bool, data []byte) (more bool) {
	for i := range n {
		var raw []byte
		raw, data, _ = bytes.Cut(data, []byte{'\n'})
		e := session.Event{Index: first + session.Index(i), Raw: raw[:len(raw):len(raw)], Final: final && i == n-1}
		if e.Index <= c.after {
			continue
		}
		if c.full() {
			c.page.More = true
			return false
		}
		if len(c.page.Events) == 0 {
			c.page.Gap = e.Index > c.after+1
		}
		c.page.Events = append(c.page.Events, e)
		c.size += len(raw)
	}
	return true
}

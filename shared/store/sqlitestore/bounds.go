package sqlitestore

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// openFactor is the factor by which the log of an open request may exceed the limits of
// its session.
const openFactor = 16

// A check of a session's limits reads a row for each batch, so checks are rare. The next check comes
// when the room that the last one found is used up, or lookLeast of a full log if that is more. The
// first check of a session in this process comes after a random part of a full log, up to lookFirst.
const (
	lookLeast = 1. / 4
	lookFirst = 1. / 64
)

// looks says when this process checks the limits of each session.
type looks struct {
	mu   sync.Mutex
	left map[storage.ID]float64 // how much of a full log may be appended before the next check
}

// maxLooks is the largest number of sessions in looks.
const maxLooks = 1000

// due counts a batch of a session and reports whether it is time to check the limits.
// The argument share says which part of a full log the batch is.
func (l *looks) due(id storage.ID, share float64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	left, known := l.left[id]
	if !known {
		left = lookFirst * rand.Float64()
	}
	left -= share
	l.set(id, left)
	return left <= 0
}

// found sets how much may be appended to a session before its next check. The argument share is how
// full the log is.
func (l *looks) found(id storage.ID, share float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set(id, max(1-share, lookLeast))
}

func (l *looks) set(id storage.ID, left float64) {
	if l.left == nil || len(l.left) >= maxLooks {
		l.left = map[storage.ID]float64{}
	}
	l.left[id] = left
}

// bound checks the limits of a session at intervals, and drops batches that exceed them.
// If it fails, the next check does the work.
func (s *Store) bound(ctx context.Context, b storage.Batch, size int) {
	if !s.looks.due(b.Session, s.options.share(len(b.Events), int64(size))) {
		return
	}
	share, over, err := s.weigh(ctx, b.Session)
	if err == nil && !over {
		s.looks.found(b.Session, share)
	}
	if err != nil || !over {
		return
	}
	log, err := s.logOf(ctx, b.Session)
	if err != nil {
		return
	}
	drop := tooMuch(log, s.options, now())
	s.looks.found(b.Session, 1)
	if len(drop) > 0 {
		_ = s.dropBatches(ctx, b.Session, drop)
	}
}

// share returns how full a log of so many events and bytes is: 1 at its limits.
func (o Options) share(events int, bytes int64) float64 {
	return max(float64(events)/float64(o.Events), float64(bytes)/float64(o.Bytes))
}

const weighLog = `
SELECT coalesce(sum(n), 0), coalesce(sum(bytes), 0), coalesce(min(stream), ''), coalesce(min(written), 0) FROM events
WHERE session = ? AND expires > ?`

// weigh returns how full a session's log is (see share), and whether it may be over its limits. A log
// beyond openFactor times a limit may be. So may a log beyond a limit that has a batch older than
// Settle, or one of the standalone stream.
func (s *Store) weigh(ctx context.Context, id storage.ID) (share float64, over bool, err error) {
	var events int
	var size, oldest int64
	var first storage.StreamID
	_, err = s.longRow(ctx, weighLog, []any{id, now()}, []any{&events, &size, &first, &oldest})
	o := s.options
	over = events > openFactor*o.Events || size > openFactor*o.Bytes ||
		(events > o.Events || size > o.Bytes) && (first == storage.Standalone || now()-oldest >= o.Settle.Microseconds())
	return o.share(events, size), over, err
}

// logBatch holds the fields of a batch that the limits depend on.
type logBatch struct {
	stream  storage.StreamID
	first   storage.Index
	n       int
	bytes   int64
	final   bool
	written int64
}

const readLog = `
SELECT stream, first, n, bytes, final, written FROM events WHERE session = ? AND expires > ? ORDER BY stream, first`

func (s *Store) logOf(ctx context.Context, id storage.ID) ([]logBatch, error) {
	return listOf(ctx, &s.database, readLog, []any{id, now()}, func(scan func(...any) error) (b logBatch, err error) {
		err = scan(&b.stream, &b.first, &b.n, &b.bytes, &b.final, &b.written)
		return b, err
	})
}

// tooMuch returns the batches to drop from a session's log, which it takes sorted by stream and
// first index. If the log exceeds a limit, so many batches are dropped that it has seven eighths of
// both limits, and the next batch does not exceed one again.
func tooMuch(log []logBatch, o Options, now int64) []logBatch {
	var (
		drop   []logBatch
		fronts []logBatch // batches that are not the last of their stream, and may be dropped
		ends   []logBatch // the last ones of ended streams, which may be dropped after all fronts
		kept   []logBatch // the last ones of ended streams with [storage.StreamID.Kept]; they have limits of their own
	)
	var events, keptEvents int
	var size, keptSize int64
	for len(log) > 0 {
		end := 1
		for end < len(log) && log[end].stream == log[0].stream {
			end++
		}
		stream := log[:end]
		log = log[end:]
		last := stream[len(stream)-1]
		if last.stream != storage.Standalone && !last.final {
			drop = append(drop, tooLong(stream, o)...)
			continue
		}
		if last.stream.Kept() {
			stream, kept = stream[:len(stream)-1], append(kept, last)
			keptEvents += last.n
			keptSize += last.bytes
		}
		for i, b := range stream {
			events += b.n
			size += b.bytes
			if i > 0 { // even if a clock was set back, batches are dropped in their order
				stream[i].written = max(b.written, stream[i-1].written)
			}
		}
		switch {
		case last.stream == storage.Standalone:
			fronts = append(fronts, stream[:len(stream)-1]...)
		case last.stream.Kept():
			fronts = append(fronts, stream...)
		case now-last.written >= o.Settle.Microseconds():
			fronts = append(fronts, stream[:len(stream)-1]...)
			ends = append(ends, last)
		}
	}
	slices.SortStableFunc(kept, byAge)
	for _, b := range kept {
		if keptEvents <= openFactor*o.Events && keptSize <= openFactor*o.Bytes {
			break
		}
		drop = append(drop, b)
		keptEvents -= b.n
		keptSize -= b.bytes
	}
	if events <= o.Events && size <= o.Bytes {
		return drop
	}
	slices.SortStableFunc(fronts, byAge)
	slices.SortStableFunc(ends, byAge)
	for _, b := range append(fronts, ends...) {
		if events <= o.Events-o.Events/8 && size <= o.Bytes-o.Bytes/8 {
			break
		}
		drop = append(drop, b)
		events -= b.n
		size -= b.bytes
	}
	return drop
}

func byAge(a, b logBatch) int { return cmp.Compare(a.written, b.written) }

// tooLong returns the batches to drop from the front of an open request's stream, so that at most
// openFactor times the limits remain.
func tooLong(stream []logBatch, o Options) []logBatch {
	events, size := 0, int64(0)
	for i, b := range slices.Backward(stream) {
		events += b.n
		size += b.bytes
		if i < len(stream)-1 && (events > openFactor*o.Events || size > openFactor*o.Bytes) {
			return stream[:i+1]
		}
	}
	return nil
}

const dropBatch = `DELETE FROM events WHERE session = ? AND stream = ? AND first = ?`

func (s *Store) dropBatches(ctx context.Context, id storage.ID, drop []logBatch) error {
	w := write{query: dropBatch, soon: true}
	for _, b := range drop {
		w.args = append(w.args, []any{id, b.stream, b.first})
	}
	return s.commit(ctx, &w)
}

// One write in tidyEvery, on average, also removes some expired rows.
const tidyEvery = 256

// tidy removes a few expired rows at intervals, so that a store without sweeps does not
// grow for ever.
func (s *Store) tidy(ctx context.Context) {
	if rand.IntN(tidyEvery) == 0 {
		_, _ = s.purge(ctx)
	}
}

// Sweep removes all expired rows. It removes events after the end of the clock hour
// in which they expired. Sweep only frees space: reads never return expired rows.
//
// Errors: Unavailable.
func (s *Store) Sweep(ctx context.Context) error {
	for {
		removed, err := s.purge(ctx)
		if err != nil || removed == 0 {
			return err
		}
	}
}

// Parts of the statements that remove old events. An event is removed after the end of the hour of
// its column purge. A statement removes events of at most 100 sessions.
//
// The stream "" of a session is its standalone stream. The row of its last batch stays without data
// while the session lives, because the next index of the stream is known from that row.
const (
	dueHours  = `hour < ?1 / 3600000000 ORDER BY hour, session LIMIT 100`
	dueRows   = `e.session IN (SELECT session FROM purges WHERE ` + dueHours + `)`
	dueEvents = dueRows + ` AND e.purge <= ?1`
	wasTail   = `(e.bytes = 0 AND e.expires <= ?1)` // the batch was the tail when its events were removed; isTail says whether it still is
	isTail    = `(e.stream = '' AND EXISTS (SELECT 1 FROM sessions WHERE id = e.session AND expires > ?1)
	AND NOT EXISTS (SELECT 1 FROM events AS l WHERE l.session = e.session AND l.stream = '' AND l.first > e.first))`
	emptyTails = `
UPDATE events AS t SET data = x'', bytes = 0, purge = (SELECT expires FROM sessions WHERE id = t.session)
WHERE rowid IN (SELECT rowid FROM events AS e WHERE ` + dueEvents + ` AND ` + isTail + ` LIMIT 100)`
	purgeEvents = `DELETE FROM events WHERE rowid IN (SELECT rowid FROM events AS e WHERE ` + dueRows + ` AND (e.purge <= ?1 OR ` + wasTail + `) AND NOT ` + isTail + ` LIMIT 100)`
	purgeHours  = `
DELETE FROM purges WHERE (hour, session) IN (SELECT hour, session FROM purges WHERE ` + dueHours + `)
AND NOT EXISTS (SELECT 1 FROM events AS e WHERE e.session = purges.session AND e.purge <= ?1)`
	purgeKeys = `DELETE FROM keys WHERE expires <= ?1` // they are few
)

// purges returns the statements that remove expired rows.
func purges() []string {
	all := []string{emptyTails, purgeEvents, purgeHours, purgeKeys}
	for _, table := range []string{"sessions", "answers", "connections", "entry_tickets", "grants", "upstream_tokens", "states", "handshakes", "parts"} {
		all = append(all, `DELETE FROM `+table+` WHERE rowid IN (SELECT rowid FROM `+table+` WHERE expires <= ?1 LIMIT 100)`)
	}
	return all
}

// purge removes up to 100 expired rows of each kind, but all expired keys. It returns how many rows
// it changed.
func (s *Store) purge(ctx context.Context) (removed int64, err error) {
	for _, query := range purges() {
		n, err := s.writeSoon(ctx, query, now())
		if err != nil {
			return removed, err
		}
		removed += n
	}
	return removed, nil
}

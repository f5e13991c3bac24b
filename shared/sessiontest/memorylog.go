package sessiontest

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// What a log takes, as session.Log says.
const (
	maxBatchEvents = 1000
	maxBatchBytes  = 16 << 20
	waitLimit      = 100
)

// Append implements session.Log.
func (m *Memory) Append(_ context.Context, b session.Batch) error {
	size := 0
	for _, e := range b.Events {
		size += len(e)
	}
	if b.First < 1 || len(b.Events) < 1 || len(b.Events) > maxBatchEvents || size > maxBatchBytes {
		return session.Errorf(session.Invalid, "a batch of %d events and %d bytes at index %d is not one", len(b.Events), size, b.First)
	}
	now := m.lock()
	defer m.mu.Unlock()
	key := streamKey{b.Session, b.Stream}
	if old, ok := m.streams[key][b.First]; ok && alive(old.Expires, now) {
		if old.Gen == b.Gen && old.Seq == b.Seq && slices.EqualFunc(old.Events, b.Events, bytes.Equal) {
			return nil
		}
		return session.Errorf(session.Conflict, "index %d of stream %q was written by generation %d, batch %d", b.First, b.Stream, old.Gen, old.Seq)
	}
	if m.streams[key] == nil {
		m.streams[key] = map[session.Index]session.Batch{}
	}
	m.streams[key][b.First] = cloneBatch(b)
	m.wake(b.Session, b.Stream)
	return nil
}

// Read implements session.Log.
func (m *Memory) Read(_ context.Context, id session.ID, stream session.StreamID, after session.Index, limit int) (session.Page, error) {
	now := m.lock()
	defer m.mu.Unlock()
	return m.page(streamKey{id, stream}, after, limit, now), nil
}

// Tail implements session.Log.
func (m *Memory) Tail(_ context.Context, id session.ID, stream session.StreamID) (session.Tail, error) {
	now := m.lock()
	defer m.mu.Unlock()
	batches := m.batches(streamKey{id, stream}, now)
	if len(batches) == 0 {
		return session.Tail{}, nil
	}
	b := batches[len(batches)-1]
	return session.Tail{Last: lastOf(b), Gen: b.Gen, Seq: b.Seq, Final: b.Final}, nil
}

// Newest implements session.Log.
func (m *Memory) Newest(_ context.Context, id session.ID) (session.StreamID, error) {
	now := m.lock()
	defer m.mu.Unlock()
	newest := session.Common
	for key := range m.streams {
		if key.session == id && key.stream > newest && len(m.batches(key, now)) > 0 {
			newest = key.stream
		}
	}
	return newest, nil
}

// Wait implements session.Log.
func (m *Memory) Wait(ctx context.Context, id session.ID, stream session.StreamID, after session.Index, until time.Time) (session.Page, error) {
	key := streamKey{id, stream}
	now := m.lock()
	page := m.page(key, after, waitLimit, now)
	changed := m.changed[key]
	if changed == nil {
		changed = make(chan struct{})
		m.changed[key] = changed
	}
	m.mu.Unlock()
	if len(page.Events) > 0 {
		return page, nil
	}
	timer := time.NewTimer(until.Sub(now))
	defer timer.Stop()
	select {
	case <-changed:
		return m.Read(ctx, id, stream, after, waitLimit)
	case <-timer.C:
		return session.Page{}, nil
	case <-ctx.Done():
		return session.Page{}, ctx.Err()
	}
}

// Batches returns all that is in the log, as it was written: streams in order of
// session and stream, their batches in order of the first index. It is no part of
// a Store, and what has expired is included.
func (m *Memory) Batches() []session.Batch {
	m.lock()
	defer m.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(m.streams), func(a, b streamKey) int {
		return cmp.Or(cmp.Compare(a.session, b.session), cmp.Compare(a.stream, b.stream))
	})
	var out []session.Batch
	for _, key := range keys {
		for _, b := range m.batches(key, time.Time{}) {
			out = append(out, cloneBatch(b))
		}
	}
	return out
}

// wake lets go of those who wait for a stream. It must be called with the lock.
func (m *Memory) wake(id session.ID, stream session.StreamID) {
	key := streamKey{id, stream}
	if changed := m.changed[key]; changed != nil {
		close(changed)
		delete(m.changed, key)
	}
}

// batches returns what is there of a stream, in order. It must be called with the
// lock.
func (m *Memory) batches(key streamKey, now time.Time) []session.Batch {
	var out []session.Batch
	for _, b := range m.streams[key] {
		if alive(b.Expires, now) {
			out = append(out, b)
		}
	}
	slices.SortFunc(out, func(a, b session.Batch) int { return cmp.Compare(a.First, b.First) })
	return out
}

// page must be called with the lock.
func (m *Memory) page(key streamKey, after session.Index, limit int, now time.Time) session.Page {
	var page session.Page
	for _, b := range m.batches(key, now) {
		for i, raw := range b.Events {
			index := b.First + session.Index(i)
			switch {
			case index <= after:
				continue
			case len(page.Events) == limit:
				page.More = true
				return page
			case len(page.Events) == 0:
				page.Gap = index > after+1
			}
			page.Events = append(page.Events, session.Event{
				Index: index, Raw: bytes.Clone(raw), Final: b.Final && index == lastOf(b),
			})
		}
	}
	return page
}

func lastOf(b session.Batch) session.Index { return b.First + session.Index(len(b.Events)) - 1 }

func cloneBatch(b session.Batch) session.Batch {
	events := make([][]byte, len(b.Events))
	for i, e := range b.Events {
		events[i] = bytes.Clone(e)
	}
	b.Events = events
	return b
}

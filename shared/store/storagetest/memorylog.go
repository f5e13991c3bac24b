package storagetest

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Append implements storage.Log.
func (m *Memory) Append(_ context.Context, b storage.Batch) error {
	if _, err := b.Lines(); err != nil {
		return err
	}
	now := m.lock()
	defer m.mu.Unlock()
	key := streamKey{b.Session, b.Stream}
	if old, ok := m.streams[key][b.First]; ok && (b.Stream == storage.Standalone || alive(old.Expires, now)) {
		if old.Gen == b.Gen && old.Seq == b.Seq && old.Final == b.Final && old.Retry == b.Retry && slices.EqualFunc(old.Events, b.Events, bytes.Equal) {
			return b.Repeated()
		}
		return storage.Errorf(storage.Conflict, "index %d of stream %q was written by generation %d, batch %d", b.First, b.Stream, old.Gen, old.Seq)
	}
	if m.streams[key] == nil {
		m.streams[key] = map[storage.Index]storage.Batch{}
	}
	m.streams[key][b.First] = cloneBatch(b)
	m.wake(b.Session, b.Stream)
	return nil
}

// Read implements storage.Log.
func (m *Memory) Read(_ context.Context, id storage.ID, stream storage.StreamID, after storage.Index, limit int) (storage.Page, error) {
	now := m.lock()
	defer m.mu.Unlock()
	return m.page(streamKey{id, stream}, after, limit, now), nil
}

// Tail implements storage.Log.
func (m *Memory) Tail(_ context.Context, id storage.ID, stream storage.StreamID) (storage.Tail, error) {
	now := m.lock()
	defer m.mu.Unlock()
	if stream == storage.Standalone {
		now = time.Time{} // so that expired batches count; see the contract of Tail
	}
	batches := m.batches(streamKey{id, stream}, now)
	if len(batches) == 0 {
		return storage.Tail{}, nil
	}
	b := batches[len(batches)-1]
	return storage.Tail{Last: b.Last(), Gen: b.Gen, Seq: b.Seq, Final: b.Final}, nil
}

// Newest implements storage.Log.
func (m *Memory) Newest(_ context.Context, id storage.ID) (storage.StreamID, error) {
	now := m.lock()
	defer m.mu.Unlock()
	newest := storage.Standalone
	for key := range m.streams {
		if key.session == id && key.stream > newest && len(m.batches(key, now)) > 0 {
			newest = key.stream
		}
	}
	return newest, nil
}

// Wait implements storage.Log.
func (m *Memory) Wait(ctx context.Context, id storage.ID, stream storage.StreamID, after storage.Index, until time.Time) (storage.Page, error) {
	key := streamKey{id, stream}
	now := m.lock()
	page := m.page(key, after, storage.MaxWait, now)
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
		return m.Read(ctx, id, stream, after, storage.MaxWait)
	case <-timer.C:
		return storage.Page{}, nil
	case <-ctx.Done():
		return storage.Page{}, ctx.Err()
	}
}

// Batches returns everything in the log as it was written, including expired batches. Streams
// are in order of session and stream, and their batches in order of the first index.
func (m *Memory) Batches() []storage.Batch {
	m.lock()
	defer m.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(m.streams), func(a, b streamKey) int {
		return cmp.Or(cmp.Compare(a.session, b.session), cmp.Compare(a.stream, b.stream))
	})
	var out []storage.Batch
	for _, key := range keys {
		for _, b := range m.batches(key, time.Time{}) {
			out = append(out, cloneBatch(b))
		}
	}
	return out
}

// wake ends the calls of Wait for a stream. The caller must hold m.mu.
func (m *Memory) wake(id storage.ID, stream storage.StreamID) {
	key := streamKey{id, stream}
	if changed := m.changed[key]; changed != nil {
		close(changed)
		delete(m.changed, key)
	}
}

// batches returns the batches of a stream that have not expired at now, in order. With the zero
// time it returns all batches. The caller must hold m.mu.
func (m *Memory) batches(key streamKey, now time.Time) []storage.Batch {
	var out []storage.Batch
	for _, b := range m.streams[key] {
		if alive(b.Expires, now) {
			out = append(out, b)
		}
	}
	slices.SortFunc(out, func(a, b storage.Batch) int { return cmp.Compare(a.First, b.First) })
	return out
}

// page returns the events of a stream after an index, as Read does. The caller must hold m.mu.
func (m *Memory) page(key streamKey, after storage.Index, limit int, now time.Time) storage.Page {
	p := storage.NewPages(after, limit)
	for _, b := range m.batches(key, now) {
		wanted, more := p.Wants(b.First, len(b.Events))
		if wanted {
			lines, _ := b.Lines() // Append has checked the batch
			more = p.Add(b.First, len(b.Events), b.Final, b.Retry, bytes.Clone(lines))
		}
		if !more {
			break
		}
	}
	return p.Page()
}

func cloneBatch(b storage.Batch) storage.Batch {
	events := make([][]byte, len(b.Events))
	for i, e := range b.Events {
		events[i] = bytes.Clone(e)
	}
	b.Events, b.Once = events, false
	return b
}

package sqlitestore

import (
	"context"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// records keeps rows of sessions and boxes as they are in the file, for [Options].Alone. Every
// message reads those of its session and its box, which seldom change. A write through this
// Store forgets its row before it returns. The zero value is ready.
type records struct {
	mu       sync.Mutex
	version  int64 // of the file; see Store.foreign
	writes   int   // that have forgotten a row
	sessions map[storage.ID]storage.Session
	boxes    map[storage.BoxID]storage.Box
}

// load returns what [Store.Load] returns, if both rows are kept and are of this version of the
// file. Otherwise the caller reads
// the rows from the file, and passes since on to keep.
func (r *records) load(id storage.ID, box storage.BoxID, version int64) (x storage.Session, b storage.Box, since int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.version != version {
		r.version, r.sessions, r.boxes = version, nil, nil
	}
	x, known := r.sessions[id]
	b, ok = r.boxes[box]
	if ok = ok && known && (x.Expires.IsZero() || time.Now().Before(x.Expires)); ok {
		x = x.Clone()
	}
	return x, b, r.writes, ok
}

// keep keeps the rows of a session and a box, which the caller has read from the file. since is
// what load returned before that. keep keeps nothing if a row was forgotten since that load.
func (r *records) keep(x storage.Session, b storage.Box, since int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.writes != since {
		return // what was read may be older than a write
	}
	if r.sessions == nil || len(r.sessions) >= maxKnown || len(r.boxes) >= maxKnown {
		r.sessions, r.boxes = map[storage.ID]storage.Session{}, map[storage.BoxID]storage.Box{}
	}
	r.sessions[x.ID], r.boxes[b.ID] = x.Clone(), b
}

// forget forgets a session and a box; either may be "".
func (r *records) forget(id storage.ID, box storage.BoxID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes++
	delete(r.sessions, id)
	delete(r.boxes, box)
}

// notKept is a since that keep never takes.
const notKept = -1

// kept is [records.load] for a file that others may write.
func (s *Store) kept(ctx context.Context, id storage.ID, box storage.BoxID) (x storage.Session, b storage.Box, since int, ok bool) {
	if !s.options.Alone || ctx.Err() != nil || s.damage.known() != nil {
		return x, b, notKept, false
	}
	version, known := s.watch.recent()
	if !known {
		select {
		case s.writer.turn <- struct{}{}:
			var err error
			version, err = s.ask(context.WithoutCancel(ctx))
			s.writer.end()
			known = err == nil
		default: // a write is on its way
		}
	}
	if !known {
		return x, b, notKept, false
	}
	return s.records.load(id, box, version)
}

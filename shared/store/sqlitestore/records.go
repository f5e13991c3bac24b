package sqlitestore

import (
	"context"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// records caches sessions and boxes as they are in the file, if [Options].Alone is set. A write
// through this Store removes the written record from the cache before it returns. The zero value
// is ready.
type records struct {
	mu       sync.Mutex
	version  int64 // the file's data version to which the records belong; see database.foreign
	writes   int   // how often the method forget was called
	sessions map[storage.ID]storage.Session
	boxes    map[storage.BoxID]storage.Box
}

// maxRecords bounds the sessions in the cache, and also the boxes. A session and a box that were read
// together are cached if they have at most maxRecord bytes in all.
const (
	maxRecords = 256
	maxRecord  = 4 << 10
)

// load returns a session and a box if the cache has both and they belong to this version of the file.
// If ok is false, the caller reads both from the file, and passes the result since to the method keep.
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

// keep caches a session and a box that the caller has read from the file. The argument since is what
// load returned before the read. If forget was called after load, keep does nothing: what the caller
// has read may be older than a write.
func (r *records) keep(x storage.Session, b storage.Box, since int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.writes != since {
		return
	}
	if r.sessions == nil || len(r.sessions) >= maxRecords || len(r.boxes) >= maxRecords {
		r.sessions, r.boxes = map[storage.ID]storage.Session{}, map[storage.BoxID]storage.Box{}
	}
	r.sessions[x.ID], r.boxes[b.ID] = x.Clone(), b
}

// forget removes a session and a box from the cache; either may be "".
func (r *records) forget(id storage.ID, box storage.BoxID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes++
	delete(r.sessions, id)
	delete(r.boxes, box)
}

// notKept, as the argument since, makes keep do nothing.
const notKept = -1

// kept calls records.load with the file's present data version. If the data version is not known,
// ok is false.
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
		default: // a write has the connection
		}
	}
	if !known {
		return x, b, notKept, false
	}
	return s.records.load(id, box, version)
}

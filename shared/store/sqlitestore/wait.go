package sqlitestore

import (
	"bytes"
	"context"
	"errors"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Wait waits for something to read; see [storage.Log].
//
// A write through this Store wakes the calls of Wait in it, and Append gives them the
// batch.
//
// Wait polls the file to find the writes of other processes. It polls first when the
// stream is 4 ms old, and then every 5 to 10 ms. Later it polls after a tenth of the time
// it has waited, at most a second. The first poll reads the stream. A later one reads it only
// if another process has written to the file. With [Options].Alone, the first poll of a new
// stream comes after 100 ms, and the next ones every second.
//
// Wait returns Unavailable when the disk has failed all writes for 5 s: what it waits for
// could not be stored.
func (s *Store) Wait(ctx context.Context, id storage.ID, stream storage.StreamID, after storage.Index, until time.Time) (storage.Page, error) {
	w := s.waiters.enter(id, stream)
	defer s.waiters.leave(w)
	begun := time.Now()
	look, polled, seen := begun, false, int64(0) // seen is the file's data version at the last poll
	if s.waiters.untouched(w.stream) {
		look = stream.Time().Add(infant)
		if s.options.Alone {
			look = begun.Add(newborn)
		}
	}
	for {
		if until.Before(look) {
			look = until
		}
		n, woken, err := w.wait(ctx, s.closed, look)
		if err != nil {
			return storage.Page{}, err
		}
		if p, known := n.page(after); known {
			return p, nil
		}
		now := time.Now()
		over := woken || !now.Before(until)
		version, known, err := s.lately(ctx, seen) // before the read, so that a later write shows at the next poll
		if err == nil && (woken || !known || version != seen || !polled) {
			polled = true
			var p storage.Page
			p, err = s.Read(ctx, id, stream, after, storage.MaxWait)
			if len(p.Events) > 0 {
				return p, nil
			}
		}
		if ctx.Err() != nil {
			return storage.Page{}, ctx.Err()
		}
		if err == nil {
			err = s.health.lasting()
		}
		if err != nil || over {
			return storage.Page{}, err
		}
		seen, look = version, now.Add(s.pace(now.Sub(begun)))
	}
}

// lately returns the file's data version. It waits at most patience for the connection that
// writes: on a slow disk a write may have the connection for seconds. If that is not enough,
// lately returns its argument seen, and known is false.
func (s *Store) lately(ctx context.Context, seen int64) (version int64, known bool, err error) {
	soon, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	version, err = s.foreign(soon)
	if err != nil && soon.Err() != nil && ctx.Err() == nil {
		return seen, false, nil
	}
	return version, err == nil, err
}

// patience is how long a Wait waits for the connection that writes.
const patience = 20 * time.Millisecond

// infant is the age of a stream at which Wait polls it for the first time. No other process
// answers a request sooner.
const infant = 4 * time.Millisecond

// newborn replaces infant if [Options].Alone is set, and counts from the call of Wait. The poll finds
// what another program has written, or what this Store wrote after the clock was set back.
const newborn = 100 * time.Millisecond

// pace returns the time until the next poll.
func (s *Store) pace(waited time.Duration) time.Duration {
	if s.options.Alone {
		return time.Second
	}
	return min(max(waited/10, 5*time.Millisecond+rand.N(5*time.Millisecond)), time.Second)
}

// watch caches the file's data version, which shows whether another process has
// written.
type watch struct {
	mu      sync.Mutex
	version int64
	asked   time.Time // when the read of version began
}

// watchAge is the age at which the data version is read again.
const watchAge = 4 * time.Millisecond

const dataVersion = `PRAGMA data_version`

// foreign returns the file's data version. It changes when another Store writes to the
// file. It stays the same for writes of this Store, because foreign asks on the connection
// that writes. The number may be up to watchAge old.
func (d *database) foreign(ctx context.Context) (int64, error) {
	if version, known := d.watch.recent(); known {
		return version, nil
	}
	uncut, err := d.writer.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer d.writer.end()
	return d.ask(uncut)
}

// recent returns the data version if it was read in the last watchAge.
func (w *watch) recent() (version int64, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	age := time.Since(w.asked)
	return w.version, age >= 0 && age < watchAge
}

// ask reads the data version. The caller has the connection that writes.
func (d *database) ask(uncut context.Context) (version int64, err error) {
	begun := time.Now()
	if _, err = d.writer.scan(uncut, dataVersion, nil, []any{&version}); err != nil {
		return 0, err
	}
	d.watch.mu.Lock()
	defer d.watch.mu.Unlock()
	d.watch.version, d.watch.asked = version, begun
	return version, nil
}

type streamKey struct {
	session storage.ID
	stream  storage.StreamID
}

// waiters are the calls of Wait in this Store, by stream. The zero value is ready.
type waiters struct {
	mu sync.Mutex
	by map[streamKey][]*waiter

	// touched holds the time of the last write to a stream through this Store, in Unix
	// milliseconds. Streams whose hashes are equal share an entry, which keeps their latest time.
	touched [4096]atomic.Int64
}

type waiter struct {
	stream streamKey
	news   chan news // capacity 1
}

func (w *waiters) enter(id storage.ID, stream storage.StreamID) *waiter {
	entered := &waiter{streamKey{id, stream}, make(chan news, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by == nil {
		w.by = map[streamKey][]*waiter{}
	}
	w.by[entered.stream] = append(w.by[entered.stream], entered)
	return entered
}

func (w *waiters) leave(left *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	stay := slices.DeleteFunc(w.by[left.stream], func(o *waiter) bool { return o == left })
	if w.by[left.stream] = stay; len(stay) == 0 {
		delete(w.by, left.stream)
	}
}

var seed = maphash.MakeSeed()

func (w *waiters) place(stream streamKey) *atomic.Int64 {
	return &w.touched[maphash.Comparable(seed, stream)%uint64(len(w.touched))]
}

// untouched reports whether a stream is younger than infant and this Store has not written to
// it. If so, the stream has nothing to read yet. Call enter before untouched, so that a later
// write wakes the waiter.
func (w *waiters) untouched(stream streamKey) bool {
	begun := stream.stream.Time()
	age := time.Since(begun)
	return age >= 0 && age < infant && w.place(stream).Load() < begun.UnixMilli()
}

func (w *waiters) wake(id storage.ID, stream storage.StreamID, n news) {
	key := streamKey{id, stream}
	now, place := time.Now().UnixMilli(), w.place(key)
	for was := place.Load(); was < now && !place.CompareAndSwap(was, now); was = place.Load() {
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, o := range w.by[key] {
		own := n // the first waiter may have the bytes themselves: the store needs them no more
		if i > 0 {
			own.lines = bytes.Clone(n.lines) // each waiter may change its own
		}
		select {
		case o.news <- own:
		default: // the waiter already has an unread batch, and will read the rest
		}
	}
}

// wait returns the next news. If there is none before the deadline, woken is false. Errors: ctx's
// own, or Unavailable when the store is closed.
func (w *waiter) wait(ctx context.Context, closed <-chan struct{}, deadline time.Time) (n news, woken bool, err error) {
	if err := ctx.Err(); err != nil {
		return news{}, false, err
	}
	select {
	case n := <-w.news:
		return n, true, nil
	default:
	}
	rest := time.Until(deadline)
	if rest <= 0 {
		return news{}, false, nil
	}
	select {
	case n := <-w.news:
		return n, true, nil
	case <-time.After(rest):
		return news{}, false, nil
	case <-closed:
		return news{}, false, failed(errors.New("the store was closed"))
	case <-ctx.Done():
		return news{}, false, ctx.Err()
	}
}

// news is a batch that was just written, so that a waiter need not read it from the
// file. The zero value means only that something was written.
type news struct {
	first storage.Index
	n     int
	final bool
	retry time.Duration
	lines []byte
}

// page returns the page that a read after a cursor would return. known is false if the
// batch does not begin right after the cursor; the waiter must then read the file.
func (n news) page(after storage.Index) (p storage.Page, known bool) {
	if n.n == 0 || n.first != max(after, 0)+1 {
		return storage.Page{}, false
	}
	pages := storage.NewPages(after, storage.MaxWait)
	pages.Add(n.first, n.n, n.final, n.retry, n.lines)
	return pages.Page(), true
}

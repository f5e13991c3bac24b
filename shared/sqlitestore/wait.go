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

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Wait waits for something to read; see [session.Log].
//
// A write of this Store wakes those who wait in it, and Append hands them the batch.
// For the writes of other processes Wait looks by itself: first when the stream is
// 4 ms old, then every 5 to 10 ms, then after a tenth of the time it has waited, at
// last every second. It reads then only if another process has written since.
func (s *Store) Wait(ctx context.Context, id session.ID, stream session.StreamID, after session.Index, until time.Time) (session.Page, error) {
	w := s.waiters.enter(id, stream)
	defer s.waiters.leave(w)
	begun := time.Now()
	look, read, seen := begun, false, int64(0)
	if s.waiters.untouched(w.stream) {
		look = stream.Time().Add(infant)
	}
	for {
		n, woken, err := w.wait(ctx, s.closed, earlier(look, until))
		if err != nil {
			return session.Page{}, err
		}
		if p, known := n.page(after); known {
			return p, nil
		}
		now := time.Now()
		over := woken || !now.Before(until)
		version, err := s.foreign(ctx) // before the read, which may find more
		if err == nil && (woken || !read || version != seen) {
			var p session.Page
			p, err = s.Read(ctx, id, stream, after, session.MaxWait)
			if len(p.Events) > 0 {
				return p, nil
			}
		}
		if ctx.Err() != nil {
			return session.Page{}, ctx.Err()
		}
		if err != nil || over {
			return session.Page{}, err
		}
		read, seen, look = true, version, now.Add(pace(now.Sub(begun)))
	}
}

// infant is the age at which a stream is first looked at for what other processes
// have written: they take longer to answer a request.
const infant = 4 * time.Millisecond

// pace is the time to the next look.
func pace(waited time.Duration) time.Duration {
	return min(max(waited/10, 5*time.Millisecond+rand.N(5*time.Millisecond)), time.Second)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// watch knows whether other processes have written.
type watch struct {
	mu      sync.Mutex
	version int64
	asked   time.Time
}

// watchAge is for how long one look at the file serves all who wait.
const watchAge = 4 * time.Millisecond

const dataVersion = `PRAGMA data_version`

// foreign returns a number that changes when another Store has written to the file:
// the connection that asks is the one that writes here. It may be the number of up to
// watchAge ago.
func (s *Store) foreign(ctx context.Context) (int64, error) {
	begun := time.Now()
	s.watch.mu.Lock()
	version, age := s.watch.version, begun.Sub(s.watch.asked)
	s.watch.mu.Unlock()
	if age >= 0 && age < watchAge {
		return version, nil
	}
	uncut, err := s.writer.begin(ctx)
	if err != nil {
		return 0, err
	}
	_, err = s.writer.scan(uncut, dataVersion, nil, []any{&version})
	s.writer.end()
	if err != nil {
		return 0, err
	}
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	s.watch.version, s.watch.asked = version, begun
	return version, nil
}

// streamKey names a stream of a session.
type streamKey struct {
	session session.ID
	stream  session.StreamID
}

// waiters are those who wait in this Store. The zero value is ready.
type waiters struct {
	mu sync.Mutex
	by map[streamKey][]*waiter

	// touched is when a stream was last written to through this Store, in Unix
	// milliseconds. Streams share a place by their hash, and the last of them counts.
	touched [4096]atomic.Int64
}

// waiter is one call of Wait.
type waiter struct {
	stream streamKey
	news   chan news // it has room for one
}

func (w *waiters) enter(id session.ID, stream session.StreamID) *waiter {
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

// untouched says that a stream is younger than infant and that nothing was written
// to it through this Store: there is nothing to read yet. Who asks has entered
// before, so that a write that comes later wakes it.
func (w *waiters) untouched(stream streamKey) bool {
	begun := stream.stream.Time()
	age := time.Since(begun)
	return age >= 0 && age < infant && w.place(stream).Load() < begun.UnixMilli()
}

// wake hands news to those who wait for a stream.
func (w *waiters) wake(id session.ID, stream session.StreamID, n news) {
	key := streamKey{id, stream}
	w.place(key).Store(time.Now().UnixMilli())
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.by[key] {
		select {
		case o.news <- n.clone():
		default: // it has news already, and looks for more
		}
	}
}

// wait returns news, or nothing at a time. Its error is that of ctx, or Unavailable
// when the store is closed.
func (w *waiter) wait(ctx context.Context, closed <-chan struct{}, until time.Time) (n news, woken bool, err error) {
	if err := ctx.Err(); err != nil {
		return news{}, false, err
	}
	select {
	case n := <-w.news:
		return n, true, nil
	default:
	}
	rest := time.Until(until)
	if rest <= 0 {
		return news{}, false, nil
	}
	timer := time.NewTimer(rest)
	defer timer.Stop()
	select {
	case n := <-w.news:
		return n, true, nil
	case <-timer.C:
		return news{}, false, nil
	case <-closed:
		return news{}, false, failed(errors.New("the store was closed"))
	case <-ctx.Done():
		return news{}, false, ctx.Err()
	}
}

// news is a batch that was just written, so that who waits for it need not read it.
// The zero value says no more than that something was written.
type news struct {
	first session.Index
	n     int
	final bool
	retry time.Duration
	lines []byte
}

// clone is the news for one waiter, who may change what it is given.
func (n news) clone() news {
	n.lines = bytes.Clone(n.lines)
	return n
}

// page is what a read after a cursor would find; known is false if the news do not
// say, because what they bring is not what comes next.
func (n news) page(after session.Index) (p session.Page, known bool) {
	if n.n == 0 || n.first != max(after, 0)+1 {
		return session.Page{}, false
	}
	pages := session.NewPages(after, session.MaxWait)
	pages.Add(n.first, n.n, n.final, n.retry, n.lines)
	return pages.Page(), true
}

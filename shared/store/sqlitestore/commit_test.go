package sqlitestore

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// atOnce makes calls while another one has the connection, so that they are written
// together. It returns their errors in the same order.
func atOnce(t *testing.T, s *Store, calls ...func() error) []error {
	t.Helper()
	errs, wg := make([]error, len(calls)), sync.WaitGroup{}
	s.writer.turn <- struct{}{}
	for i, call := range calls {
		wg.Go(func() { errs[i] = call() })
	}
	for queued(s) < len(calls) {
		runtime.Gosched()
	}
	s.writer.end()
	wg.Wait()
	return errs
}

func queued(s *Store) int {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	return len(s.queue.waiting)
}

func appending(t *testing.T, s *Store, b storage.Batch) func() error {
	return func() error { return s.Append(t.Context(), b) }
}

func TestWritesThatComeAtOnceAllHappen(t *testing.T) {
	s := fresh(t)
	put(t, s, batch("taken", 1, `1`))
	var calls []func() error
	for i := range 10 {
		calls = append(calls, appending(t, s, batch(storage.StreamID(fmt.Sprint("r", i)), 1, `1`)))
	}
	calls = append(calls, appending(t, s, batch("taken", 1, `2`)), appending(t, s, batch("", 1, `1`)), appending(t, s, batch("", 1, `2`)))
	errs := atOnce(t, s, calls...)
	for i, err := range errs[:10] {
		commontest.OKIn(t, "Append", err)
		commontest.SameIn(t, "events", []storage.Index{1}, indexes(read(t, s, storage.StreamID(fmt.Sprint("r", i)), 0)))
	}
	wantCode(t, "Append where something stands", errs[10], storage.Conflict)
	if first, second := storage.CodeOf(errs[11]), storage.CodeOf(errs[12]); (first == storage.Conflict) == (second == storage.Conflict) {
		t.Errorf("of two writers of one index one got %q, the other %q", first, second)
	}
}

func TestAWriteThatFailsTakesNoOtherWithIt(t *testing.T) {
	s := fresh(t)
	if _, err := s.writer.db.ExecContext(t.Context(), "PRAGMA max_page_count=100"); err != nil {
		t.Fatal(err)
	}
	big := strings.Repeat("x", 1<<20)
	errs := atOnce(t, s,
		appending(t, s, batch("r1", 1, `1`)), appending(t, s, batch("r2", 1, big)), appending(t, s, batch("r3", 1, `1`)),
		func() error { _, err := s.Claim(t.Context(), "b", "r1", 1); return err })
	commontest.SameIn(t, "the small ones", []error{nil, nil}, []error{errs[0], errs[2]})
	wantCode(t, "the one for which there is no room", errs[1], storage.Unavailable)
	wantCode(t, "Claim of what is not there", errs[3], storage.NotFound)
	for stream, want := range map[storage.StreamID][]storage.Index{"r1": {1}, "r2": nil, "r3": {1}} {
		commontest.SameIn(t, string(stream), want, indexes(read(t, s, stream, 0)))
	}
}

// held returns a store whose next fsync of the log waits until the test releases it. reached
// returns when a write waits for that.
func held(t *testing.T) (s *Store, d *disk, reached, letGo func()) {
	t.Helper()
	dir := t.TempDir()
	d, o := newDisk(t, dir)
	s = open(t, filepath.Join(dir, "store.db"), o)
	t.Cleanup(func() { _ = s.Close() })
	at, released, once := make(chan struct{}), make(chan struct{}), sync.Once{}
	d.setBefore(func(c diskCall) int32 {
		if c.do == diskSync {
			once.Do(func() {
				close(at)
				<-released
			})
		}
		return 0
	})
	reached = func() {
		t.Helper()
		select {
		case <-at:
		case <-time.After(time.Minute):
			t.Fatal("no write waits for an fsync")
		}
	}
	letGo = sync.OnceFunc(func() { close(released) })
	t.Cleanup(letGo) // Close may wait for an fsync too
	return s, d, reached, letGo
}

func TestNobodySeesAWriteThatIsNotOnTheDisk(t *testing.T) {
	s, _, reached, letGo := held(t)
	written, back := make(chan error, 1), make(chan storage.Page, 1)
	go func() {
		p, _ := s.Wait(t.Context(), "s1", "r1", 0, far())
		back <- p
	}()
	go func() { written <- s.Append(t.Context(), batch("r1", 1, `1`)) }()
	reached()
	commontest.SameIn(t, "events that this store reads", []storage.Index(nil), indexes(read(t, s, "r1", 0)))
	commontest.SameIn(t, "events that another reads", []storage.Index(nil), indexes(read(t, again(t, s), "r1", 0)))
	commontest.SameIn(t, "calls that have returned", 0, len(written)+len(back))
	letGo()
	commontest.OKIn(t, "Append", <-written)
	commontest.SameIn(t, "events that a waiter is given", []storage.Index{1}, indexes(<-back))
	commontest.SameIn(t, "events", []storage.Index{1}, indexes(read(t, s, "r1", 0)))
}

func TestWritesThatComeDuringAnFsyncShareTheNextOne(t *testing.T) {
	s, d, reached, letGo := held(t)
	const writes = 20
	errs := make(chan error, writes)
	write := func(i int) { errs <- s.Append(t.Context(), batch(storage.StreamID(fmt.Sprint("r", i)), 1, `1`)) }
	go write(0)
	reached()
	before := syncs(d)
	for i := 1; i < writes; i++ {
		go write(i)
	}
	for queued(s) < writes-1 {
		runtime.Gosched()
	}
	letGo()
	for range writes {
		commontest.OKIn(t, "Append", <-errs)
	}
	commontest.SameIn(t, "fsyncs", 2, syncs(d)-before)
}

func syncs(d *disk) (n int) {
	for _, c := range d.done() {
		if c.do == diskSync {
			n++
		}
	}
	return n
}

// A client opens a session, says that it is initialized, and makes its first call. What the
// first call notes in the session comes to the disk with the call's end.
func TestASessionWithItsFirstCallTakesThreeFsyncs(t *testing.T) {
	for name, behind := range map[string]bool{"disk": false, "process": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			d, o := newDisk(t, dir)
			o.Behind = behind
			s := open(t, filepath.Join(dir, "store.db"), o)
			t.Cleanup(func() { commontest.OKIn(t, "Close", s.Close()) })
			x := storage.Session{ID: "s1", Expires: time.Now().Add(time.Hour)}
			before := syncs(d)
			commontest.OKIn(t, "Create", s.Create(t.Context(), x))
			for i, ctx := range []context.Context{t.Context(), storage.Lazily(t.Context())} {
				x.Rev = int64(i + 1)
				commontest.OKIn(t, "Save", s.Save(ctx, x))
			}
			put(t, s, batch("r1", 1, `1`))
			if n := syncs(d) - before; n > 3 {
				t.Errorf("%d fsyncs, want at most 3", n)
			}
			x.Rev, x.State = 3, storage.Ended
			commontest.OKIn(t, "Save", s.Save(storage.Lazily(t.Context()), x))
			if n := syncs(d) - before; n != 4 && !behind {
				t.Errorf("%d fsyncs with the session's end, want 4", n)
			}
		})
	}
}

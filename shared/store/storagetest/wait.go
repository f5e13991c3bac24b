package storagetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// waited is the result of one call of Wait.
type waited struct {
	page storage.Page
	err  error
}

// wait calls Wait for stream "r1" of "s1" in its own goroutine.
func wait(ctx context.Context, s storage.Store, after storage.Index, until time.Time) <-chan waited {
	back, begun := make(chan waited, 1), make(chan struct{})
	go func() {
		close(begun)
		p, err := s.Wait(ctx, "s1", "r1", after, until)
		back <- waited{p, err}
	}()
	<-begun
	return back
}

// soon returns the result of a call of Wait, and fails if Wait does not return within patience.
func soon(t *testing.T, back <-chan waited) waited {
	t.Helper()
	select {
	case w := <-back:
		return w
	case <-time.After(patience):
		t.Fatalf("Wait has not come back in %s", patience)
		return waited{}
	}
}

// far returns a deadline for Wait. The deadline passes only if a test fails.
func far() time.Time { return time.Now().Add(time.Minute) }

func waitPromises(h Harness) []promise {
	items := promise{"an item that is put or claimed by this handle ends the wait", itemWakes}
	if h.Polls {
		items = promise{"an item that is put or claimed is no event", itemIsNoEvent}
	}
	return []promise{
		items,
		{"what is there is returned at once", func(t *testing.T, k *kit) {
			put(t, k, aBatch(1, `1`, `2`), aBatch(3, `3`))
			for _, until := range []time.Time{far(), past()} {
				w := soon(t, wait(t.Context(), k, 1, until))
				noError(t, "Wait", w.err)
				same(t, "events", raws(t, w.page), []string{`2`, `3`})
			}
		}},
		{"a page holds as many events as that of a Read", func(t *testing.T, k *kit) {
			put(t, k, aBatch(1, numbered(1, storage.MaxWait)...))
			more := aBatch(storage.MaxWait+1, numbered(storage.MaxWait+1, 50)...)
			more.Seq++
			put(t, k, more)
			w := soon(t, wait(t.Context(), k, 0, far()))
			noError(t, "Wait", w.err)
			same(t, "events", raws(t, w.page), numbered(1, storage.MaxWait))
			same(t, "More", w.page.More, true)
		}},
		{"an append is noticed", func(t *testing.T, k *kit) { noticed(t, k, k.Store) }},
		{"an append by another handle is noticed", func(t *testing.T, k *kit) { noticed(t, k, k.other(t)) }},
		{"all who wait for a stream notice", everybodyNotices},
		{"no wake-up is lost between looking and waiting", func(t *testing.T, k *kit) { stress(t, k, k.Store, 2000) }},
		{"no write of another handle is missed between looking and waiting", func(t *testing.T, k *kit) { stress(t, k, k.other(t), 200) }},
		{"an append to another stream is none to this one", func(t *testing.T, k *kit) {
			back := wait(t.Context(), k, 0, time.Now().Add(50*time.Millisecond))
			b := aBatch(1, `1`)
			b.Stream = "r2"
			put(t, k, b)
			w := soon(t, back)
			noError(t, "Wait", w.err)
			same(t, "page", w.page, storage.Page{})
		}},
		{"the wait ends at until with an empty page", func(t *testing.T, k *kit) {
			for _, d := range []time.Duration{-time.Hour, 0, time.Millisecond, 50 * time.Millisecond} {
				w := soon(t, wait(t.Context(), k, 0, time.Now().Add(d)))
				noError(t, "Wait", w.err)
				same(t, "page", w.page, storage.Page{})
			}
		}},
		{"the wait ends with the error of its context", waitCancelled},
	}
}

// eventually calls Wait until it returns events. One call may return an empty page earlier, at the
// driver's own pace.
func eventually(t *testing.T, s storage.Store, after storage.Index) storage.Page {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		w := soon(t, wait(t.Context(), s, after, deadline))
		noError(t, "Wait", w.err)
		if len(w.page.Events) > 0 {
			return w.page
		}
	}
	t.Fatalf("no event after %d in %s", after, patience)
	return storage.Page{}
}

func noticed(t *testing.T, k *kit, writer storage.Store) {
	back := make(chan storage.Page, 1)
	begun := make(chan struct{})
	go func() {
		close(begun)
		back <- eventually(t, k, 0)
	}()
	<-begun
	b := aBatch(1, `1`, `2`)
	b.Final = true
	put(t, writer, b)
	p := <-back
	same(t, "events", raws(t, p), []string{`1`, `2`})
	same(t, "Final", p.Final(), true)
}

func everybodyNotices(t *testing.T, k *kit) {
	const waiters = 8
	handles := []storage.Store{k.Store, k.other(t)}
	back := make(chan storage.Page, waiters)
	for i := range waiters {
		go func() { back <- eventually(t, handles[i%2], 0) }()
	}
	put(t, k, aBatch(1, `1`))
	for range waiters {
		same(t, "events", raws(t, <-back), []string{`1`})
	}
}

// stress writes and reads many events, one at a time. Each write comes while the reader is about
// to wait for it. If Wait misses a write, it returns only at the driver's own slow pace, and
// stress fails because it takes too long.
func stress(t *testing.T, k *kit, writer storage.Store, pairs int) {
	const perStream, pace = 100, 200 * time.Millisecond
	most := time.Duration(pairs) * pace
	turns, written := make(chan storage.Batch), make(chan error, 1)
	go func() {
		var err error
		for b := range turns {
			if err == nil {
				err = writer.Append(t.Context(), b)
			}
		}
		written <- err
	}()
	begin := time.Now()
	for i := range pairs {
		b := aBatch(storage.Index(1+i%perStream), fmt.Sprint(i))
		b.Stream = storage.StreamID(fmt.Sprint("r", i/perStream))
		turns <- b
		for {
			p, err := k.Wait(t.Context(), b.Session, b.Stream, b.First-1, time.Now().Add(patience))
			noError(t, "Wait", err)
			if len(p.Events) > 0 {
				same(t, "events", raws(t, p), []string{fmt.Sprint(i)})
				break
			}
			if time.Since(begin) > most {
				t.Fatalf("event %d of %d has not come in %s", i, pairs, most)
			}
		}
	}
	close(turns)
	noError(t, "Append", <-written)
	if took := time.Since(begin); took > most {
		t.Fatalf("%d events took %s, more than %s each: wake-ups are lost", pairs, took, pace)
	}
}

// itemWakes checks that a change of an item ends a Wait. The test cannot see when Wait has begun
// to wait, so it tries several times, and each time changes the item a little later. The test
// passes if one Wait returns well before its deadline.
func itemWakes(t *testing.T, k *kit) {
	writer := k.Store
	for _, c := range []struct {
		name  string
		there bool // the item is there before the wait begins
		write func(storage.StreamID) error
	}{
		{"PutItem", false, func(id storage.StreamID) error {
			_, err := writer.PutItem(t.Context(), anItem("b1", id))
			return err
		}},
		{"Claim", true, func(id storage.StreamID) error {
			_, err := writer.Claim(t.Context(), "b1", id, 1)
			return err
		}},
	} {
		const tries, until = 12, 3 * time.Second
		woken := false
		for try := 0; try < tries && !woken; try++ {
			id := storage.StreamID(fmt.Sprint(c.name, try))
			if c.there {
				putItem(t, k, anItem("b1", id), true)
			}
			begun, back := time.Now(), make(chan waited, 1)
			go func() {
				p, err := k.Wait(t.Context(), "s1", id, 0, begun.Add(until))
				back <- waited{p, err}
			}()
			headStart := time.NewTimer(time.Millisecond << try)
			defer headStart.Stop()
			<-headStart.C
			noError(t, c.name, c.write(id))
			w := soon(t, back)
			noError(t, "Wait", w.err)
			same(t, "page", w.page, storage.Page{})
			woken = time.Since(begun) < until-until/4
		}
		if !woken {
			t.Fatalf("%s has not ended a wait before its end in %d tries", c.name, tries)
		}
	}
}

func itemIsNoEvent(t *testing.T, k *kit) {
	back := wait(t.Context(), k, 0, time.Now().Add(50*time.Millisecond))
	putItem(t, k, anItem("b1", "r1"), true)
	_, err := k.Claim(t.Context(), "b1", "r1", 1)
	noError(t, "Claim", err)
	w := soon(t, back)
	noError(t, "Wait", w.err)
	same(t, "page", w.page, storage.Page{})
}

func waitCancelled(t *testing.T, k *kit) {
	ctx, cancel := context.WithCancel(t.Context())
	back := wait(ctx, k, 0, far())
	cancel()
	w := soon(t, back)
	if !errors.Is(w.err, context.Canceled) {
		t.Fatalf("Wait: error %v, want %v", w.err, context.Canceled)
	}
	w = soon(t, wait(ctx, k, 0, far()))
	if !errors.Is(w.err, context.Canceled) {
		t.Fatalf("Wait with a context that had ended: error %v, want %v", w.err, context.Canceled)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for {
		w := soon(t, wait(ctx, k, 0, far()))
		if w.err == nil {
			continue // Wait returned early, at the driver's own pace
		}
		if !errors.Is(w.err, context.DeadlineExceeded) {
			t.Fatalf("Wait: error %v, want %v", w.err, context.DeadlineExceeded)
		}
		return
	}
}

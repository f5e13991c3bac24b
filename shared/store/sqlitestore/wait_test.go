package sqlitestore

import (
	"context"
	"encoding/base32"
	"encoding/binary"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func far() time.Time { return time.Now().Add(time.Minute) }

// outcome is the result of a Wait and the time it took.
type outcome struct {
	page storage.Page
	err  error
	took time.Duration
}

// virtual runs a test in virtual time with a store and a second handle on its file.
func virtual(t *testing.T, o Options, test func(t *testing.T, s, other *Store)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "store.db")
	synctest.Test(t, func(t *testing.T) {
		s, other := open(t, path, o), open(t, path)
		defer func() { _, _ = s.Close(), other.Close() }()
		test(t, s, other)
	})
}

// waiting is virtual with a Wait of the store for a stream. The Wait blocks when the test begins.
func waiting(t *testing.T, stream func() storage.StreamID, after storage.Index, test func(t *testing.T, s, other *Store, stream storage.StreamID, back <-chan outcome)) {
	t.Helper()
	virtual(t, Options{}, func(t *testing.T, s, other *Store) {
		id, back := stream(), make(chan outcome, 1)
		go func() {
			begun := time.Now()
			p, err := s.Wait(t.Context(), "s1", id, after, far())
			back <- outcome{p, err, time.Since(begun)}
		}()
		synctest.Wait()
		test(t, s, other, id, back)
	})
}

// begunNow returns a stream that begins at the present virtual time. [storage.NewStreamID]
// would continue from the streams of real time.
func begunNow() storage.StreamID {
	u := uuid.New()
	copy(u[:6], binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixMilli()))[2:])
	u[6] = u[6]&0xf | 0x70
	return storage.StreamID(strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(u[:])))
}

func named(stream storage.StreamID) func() storage.StreamID {
	return func() storage.StreamID { return stream }
}

func TestAWriteWakesThoseWhoWaitInItsStore(t *testing.T) {
	it := storage.Item{Box: "b", ID: "r1", State: storage.Waiting, Raw: []byte("1"), Address: storage.Address{Session: "s1"}}
	for name, c := range map[string]struct {
		before, write func(ctx context.Context, s *Store) error
	}{
		"Append":       {write: func(ctx context.Context, s *Store) error { return s.Append(ctx, batch("r1", 1, `1`)) }},
		"Append again": {write: func(ctx context.Context, s *Store) error { return s.Append(ctx, batch("r1", 1, `1`)) }},
		"PutItem":      {write: func(ctx context.Context, s *Store) error { _, err := s.PutItem(ctx, it); return err }},
		"Claim": {
			before: func(ctx context.Context, s *Store) error { _, err := s.PutItem(ctx, it); return err },
			write:  func(ctx context.Context, s *Store) error { _, err := s.Claim(ctx, "b", "r1", 1); return err },
		},
	} {
		t.Run(name, func(t *testing.T) {
			waiting(t, named("r1"), 0, func(t *testing.T, s, other *Store, _ storage.StreamID, back <-chan outcome) {
				if c.before != nil {
					commontest.OK(t, c.before(t.Context(), other))
				}
				commontest.OK(t, c.write(t.Context(), s))
				o := <-back
				commontest.SameIn(t, "time and error", []any{time.Duration(0), nil}, []any{o.took, o.err})
			})
		})
	}
}

func TestAWaitIsHandedWhatWasWritten(t *testing.T) {
	b := ended(batch("r1", 1, `1`, ``, `3`))
	b.Retry = 1500 * time.Microsecond
	waiting(t, named("r1"), 0, func(t *testing.T, s, _ *Store, _ storage.StreamID, back <-chan outcome) {
		put(t, s, b)
		commontest.SameIn(t, "page", read(t, s, "r1", 0), (<-back).page)
	})
}

func TestNewsThatAreNotWhatComesNextAreRead(t *testing.T) {
	expired := batch("r1", 6, `6`)
	expired.Expires = time.Unix(1, 0)
	for name, c := range map[string]struct {
		batch storage.Batch
		want  []storage.Index
	}{
		"a batch behind the cursor":       {batch("r1", 1, `1`), nil},
		"a batch that reaches beyond it":  {batch("r1", 4, `4`, `5`, `6`), []storage.Index{6}},
		"a batch that has expired":        {expired, nil},
		"a batch that is the next indeed": {batch("r1", 6, `6`), []storage.Index{6}},
	} {
		t.Run(name, func(t *testing.T) {
			waiting(t, named("r1"), 5, func(t *testing.T, s, _ *Store, _ storage.StreamID, back <-chan outcome) {
				put(t, s, c.batch)
				o := <-back
				commontest.SameIn(t, "events, time and error", []any{c.want, time.Duration(0), nil}, []any{indexes(o.page), o.took, o.err})
			})
		})
	}
}

func TestAWaitLooksForWhatOtherProcessesWrite(t *testing.T) {
	for _, c := range []struct{ after, within time.Duration }{
		{0, 10 * time.Millisecond}, {time.Second, 120 * time.Millisecond}, {50 * time.Second, time.Second},
	} {
		t.Run(c.after.String(), func(t *testing.T) {
			waiting(t, named("r1"), 0, func(t *testing.T, _, other *Store, _ storage.StreamID, back <-chan outcome) {
				<-time.After(c.after)
				put(t, other, batch("r1", 1, `1`))
				o := <-back
				commontest.SameIn(t, "events and error", []any{[]storage.Index{1}, nil}, []any{indexes(o.page), o.err})
				if late := o.took - c.after; late > c.within {
					t.Errorf("it came %s late, want at most %s", late, c.within)
				}
			})
		})
	}
}

func TestAStreamThatBeganJustNowIsNotReadBeforeItsFirstNews(t *testing.T) {
	waiting(t, begunNow, 0, func(t *testing.T, s, _ *Store, stream storage.StreamID, back <-chan outcome) {
		put(t, s, batch(stream, 1, `1`))
		o := <-back
		commontest.SameIn(t, "events, time and error", []any{[]storage.Index{1}, time.Duration(0), nil}, []any{indexes(o.page), o.took, o.err})
		synctest.Wait()
		_, prepared := s.reader.statements[readEvents]
		commontest.SameIn(t, "was anything read", false, prepared)
	})
	waiting(t, begunNow, 0, func(t *testing.T, s, other *Store, stream storage.StreamID, back <-chan outcome) {
		put(t, other, batch(stream, 1, `1`))
		o := <-back
		commontest.SameIn(t, "events, time and error", []any{[]storage.Index{1}, infant, nil}, []any{indexes(o.page), o.took, o.err})
	})
}

func TestAStoreThatIsAloneFindsWhatAnotherWritesToANewStream(t *testing.T) {
	aloneStore(t, func(t *testing.T, s, other *Store, _ func() (storage.Session, storage.Box, error)) {
		stream, begun := begunNow(), time.Now()
		put(t, other, batch(stream, 1, `1`))
		p, err := s.Wait(t.Context(), "s1", stream, 0, far())
		commontest.SameIn(t, "events, time and error", []any{[]storage.Index{1}, newborn, nil}, []any{indexes(p), time.Since(begun), err})
	})
}

func TestWhatWasWrittenToAYoungStreamBeforeTheWaitIsFoundAtOnce(t *testing.T) {
	virtual(t, Options{}, func(t *testing.T, s, _ *Store) {
		stream, begun := begunNow(), time.Now()
		put(t, s, batch(stream, 1, `1`))
		p, err := s.Wait(t.Context(), "s1", stream, 0, far())
		commontest.SameIn(t, "events, time and error", []any{[]storage.Index{1}, time.Duration(0), nil}, []any{indexes(p), time.Since(begun), err})
	})
}

func TestCloseEndsThoseWhoWait(t *testing.T) {
	waiting(t, named("r1"), 0, func(t *testing.T, s, _ *Store, _ storage.StreamID, back <-chan outcome) {
		commontest.OK(t, s.Close())
		o := <-back
		wantCode(t, "Wait", o.err, storage.Unavailable)
		commontest.SameIn(t, "time", time.Duration(0), o.took)
	})
}

// A slow disk holds up a write, which has the connection.
func TestAWaitGoesOnWhileTheDiskHoldsUpAWrite(t *testing.T) {
	virtual(t, Options{}, func(t *testing.T, s, other *Store) {
		s.writer.turn <- struct{}{}
		defer s.writer.end()
		begun := time.Now()
		p, err := s.Wait(t.Context(), "s1", "r1", 0, begun.Add(100*time.Millisecond))
		commontest.SameIn(t, "events and error", []any{[]storage.Index(nil), nil}, []any{indexes(p), err})
		if took := time.Since(begun); took > 100*time.Millisecond+2*patience {
			t.Errorf("a Wait for nothing took %s", took)
		}
		put(t, other, batch("r1", 1, `1`))
		begun = time.Now()
		p, err = s.Wait(t.Context(), "s1", "r1", 0, far())
		commontest.SameIn(t, "events of another process, and error", []any{[]storage.Index{1}, nil}, []any{indexes(p), err})
		if took := time.Since(begun); took > 2*patience {
			t.Errorf("a Wait for another process took %s", took)
		}
	})
}

// A later batch may expire while an earlier one waits to be written. Then its index is free.
func TestAnAppendEndsIfALaterBatchExpiresMeanwhile(t *testing.T) {
	virtual(t, Options{}, func(t *testing.T, s, _ *Store) {
		later := batch("r1", 5, `5`)
		later.Expires = time.Now().Add(time.Second)
		put(t, s, later)
		s.writer.turn <- struct{}{} // as a write that the disk holds up
		done := make(chan error, 1)
		go func() { done <- s.Append(t.Context(), batch("r1", 1, `1`)) }()
		<-time.After(2 * time.Second)
		s.writer.end()
		commontest.OKIn(t, "error", <-done)
	})
}

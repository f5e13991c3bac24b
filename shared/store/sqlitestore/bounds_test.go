package sqlitestore

import (
	"fmt"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// tight has limits that the store checks after every batch.
func tight(events int) Options { return Options{Events: events, Settle: time.Nanosecond} }

func ended(b storage.Batch) storage.Batch {
	b.Final = true
	return b
}

func TestTooMuch(t *testing.T) {
	const minute = int64(time.Minute / time.Microsecond)
	now := 100 * minute
	at := func(stream storage.StreamID, first storage.Index, n int, size int64, final bool, written int64) logBatch {
		return logBatch{stream: stream, first: first, n: n, bytes: size, final: final, written: written}
	}
	o := Options{Events: 8, Bytes: 800}.withDefaults()
	for _, c := range []struct {
		name string
		log  []logBatch
		want []string // "stream first"
	}{
		{"nothing", nil, nil},
		{
			"at the bounds nothing goes",
			[]logBatch{at("", 1, 4, 400, false, 1), at("a", 1, 4, 400, true, 2)},
			nil,
		},
		{
			"the oldest of the standalone stream go, with an eighth more, the last never",
			[]logBatch{at("", 1, 3, 3, false, 1), at("", 4, 1, 1, false, 2), at("", 5, 1, 1, false, 3), at("", 6, 20, 20, false, 4)},
			[]string{" 1", " 4", " 5"},
		},
		{
			"what came before an end goes before the ends, the oldest first",
			[]logBatch{
				at("a", 1, 4, 1, false, 1), at("a", 5, 1, 1, true, 2),
				at("b", 1, 4, 1, false, 3), at("b", 5, 1, 1, true, 4),
				at("c", 1, 1, 1, true, 5),
			},
			[]string{"a 1"},
		},
		{
			"the oldest ends go last",
			[]logBatch{
				at("a", 1, 1, 400, true, 3), at("b", 1, 1, 400, true, 1), at("c", 1, 1, 1, false, 0), at("c", 2, 1, 400, true, 2),
			},
			[]string{"c 1", "b 1", "c 2"},
		},
		{
			"kept ends stay beside the others, up to a bound of their own",
			[]logBatch{
				at("ax", 1, 1, 1, false, 1), at("ax", 2, 60, 1, true, 2), at("bx", 1, 60, 1, true, 1), at("c", 1, 8, 1, true, 1), at("dx", 1, 8, 1, true, 9),
			},
			[]string{"ax 1", "c 1"},
		},
		{
			"a clock that was set back makes no hole",
			[]logBatch{at("", 1, 1, 1, false, 9), at("", 2, 1, 1, false, 3), at("", 3, 7, 7, false, 4)},
			[]string{" 1", " 2"},
		},
		{
			"a request that ended just now keeps everything",
			[]logBatch{at("a", 1, 9, 9, false, 1), at("a", 10, 9, 9, true, now-minute+1), at("b", 1, 1, 1, true, now-minute)},
			[]string{"b 1"},
		},
		{
			"a request that has not ended is not counted",
			[]logBatch{at("a", 1, 100, 9, false, 1), at("a", 101, 28, 9, false, 1), at("b", 1, 8, 9, true, 1)},
			nil,
		},
		{
			"a request that has not ended and is far over the bounds loses its front",
			[]logBatch{at("a", 1, 50, 9, false, 1), at("a", 51, 50, 9, false, 1), at("a", 101, 50, 9, false, 1), at("a", 151, 50, 9, false, 1)},
			[]string{"a 1", "a 51"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, b := range tooMuch(c.log, o, now) {
				got = append(got, fmt.Sprint(b.stream, " ", b.first))
			}
			commontest.SameIn(t, c.name, c.want, got)
		})
	}
}

func TestBytesAreBounded(t *testing.T) {
	s := fresh(t, Options{Bytes: 1 << 20, Settle: time.Nanosecond})
	half := string(make([]byte, 400<<10))
	for i := range 10 {
		put(t, s, ended(batch(storage.StreamID(fmt.Sprint("r", i)), 1, half)))
	}
	left := 0
	for i := range 10 {
		left += len(read(t, s, storage.StreamID(fmt.Sprint("r", i)), 0).Events)
	}
	if left == 0 || left > 2 {
		t.Errorf("%d results of 400 KiB are left, the bound is 1 MiB", left)
	}
}

func TestAWriterSeesTheBoundsSoonerOrLater(t *testing.T) {
	s := fresh(t, Options{Settle: time.Nanosecond})
	for i := range 1500 {
		put(t, s, ended(batch(storage.StreamID(fmt.Sprintf("r%04d", i)), 1, `1`)))
	}
	log, err := s.logOf(t.Context(), "s1")
	commontest.OK(t, err)
	if len(log) > 1250 || len(log) < 800 {
		t.Errorf("%d events are left, the bound is 1,000", len(log))
	}
}

func TestEventsAreKeptForTheirAgeAtMost(t *testing.T) {
	s := fresh(t, Options{Age: time.Nanosecond})
	put(t, s, batch("r1", 1, `1`))
	commontest.SameIn(t, "events", []storage.Index(nil), indexes(read(t, s, "r1", 0)))
}

func count(t *testing.T, s *Store, table string) (n int) {
	t.Helper()
	commontest.OK(t, s.writer.db.QueryRowContext(t.Context(), "SELECT count(*) FROM "+table).Scan(&n))
	return n
}

// expired writes 250 rows of each kind that expires, already expired.
func expired(t *testing.T, s *Store) {
	t.Helper()
	past := time.Now().Add(-time.Hour)
	for i := range 250 {
		name := fmt.Sprint(i)
		b := batch(storage.StreamID(name), 1, `1`)
		b.Expires = past
		put(t, s, b)
		_, err := s.PutAnswer(t.Context(), storage.Answer{Session: "s1", Question: name, Expires: past})
		for _, err := range []error{
			err,
			s.Create(t.Context(), storage.Session{ID: storage.ID(name), Expires: past}),
			s.PutPart(t.Context(), storage.Part{Box: "b", Frame: name, Expires: past}),
		} {
			commontest.OK(t, err)
		}
	}
}

func TestSweepRemovesAllThatHasExpiredAndNothingElse(t *testing.T) {
	s := fresh(t)
	expired(t, s)
	put(t, s, batch("here", 1, `1`))
	commontest.OK(t, s.Create(t.Context(), storage.Session{ID: "here", Expires: time.Now().Add(time.Hour)}))
	commontest.OK(t, s.Sweep(t.Context()))
	for table, want := range map[string]int{"sessions": 1, "answers": 0, "events": 1, "parts": 0} {
		t.Run(table, func(t *testing.T) {
			commontest.SameIn(t, "rows in "+table, want, count(t, s, table))
		})
	}
}

func TestOnePurgeIsBounded(t *testing.T) {
	s := fresh(t)
	expired(t, s)
	before := count(t, s, "events")
	_, err := s.purge(t.Context())
	commontest.OK(t, err)
	if removed := before - count(t, s, "events"); removed > 100 {
		t.Errorf("one purge removed %d batches", removed)
	}
}

func TestWritesRemoveWhatHasExpired(t *testing.T) {
	s := fresh(t)
	for i := range 20 {
		expired(t, s) // 1,000 writes each
		if n := count(t, s, "events"); n < 250 {
			return
		}
		if i == 19 {
			t.Fatal("20,000 writes have removed nothing")
		}
	}
}

// Writes remove a few expired rows at random moments, and so may empty the last batch before
// another one follows.
func TestTailOfTheStandaloneStreamOutlivesItsEvents(t *testing.T) {
	for _, early := range []bool{false, true} {
		tailOutlivesItsEvents(t, early)
	}
}

func tailOutlivesItsEvents(t *testing.T, early bool) {
	t.Helper()
	s := fresh(t)
	x := storage.Session{ID: "s1", Expires: time.Now().Add(time.Hour)}
	commontest.OK(t, s.Create(t.Context(), x))
	tail := func() storage.Tail {
		t.Helper()
		got, err := s.Tail(t.Context(), "s1", storage.Standalone)
		commontest.OK(t, err)
		return got
	}
	a, b := batch(storage.Standalone, 1, `1`, `2`), batch(storage.Standalone, 3, `3`, `4`)
	a.Expires, b.Expires = time.Now().Add(-time.Hour), time.Now().Add(-time.Hour)
	put(t, s, a)
	if early {
		_, err := s.purge(t.Context())
		commontest.OK(t, err)
	}
	put(t, s, b)
	want := storage.Tail{Last: 4, Gen: 1, Seq: 3}
	for range 2 {
		commontest.SameIn(t, "Tail", want, tail())
		commontest.SameIn(t, "events", []storage.Index(nil), indexes(read(t, s, storage.Standalone, 0)))
		wantCode(t, "Append where the stream has been", s.Append(t.Context(), batch(storage.Standalone, 3, `x`)), storage.Conflict)
		commontest.OK(t, s.Sweep(t.Context()))
	}
	commontest.SameIn(t, "batches", 1, count(t, s, "events"))
	put(t, s, b) // the writer got no answer, so it repeats the batch
	put(t, s, batch(storage.Standalone, 5, `5`))
	commontest.SameIn(t, "Gap of a client that has seen event 4", false, read(t, s, storage.Standalone, 4).Gap)
	commontest.SameIn(t, "Gap of a client that has not", true, read(t, s, storage.Standalone, 3).Gap)

	x.Rev, x.Expires = 1, time.Now().Add(-time.Hour)
	commontest.OK(t, s.Save(t.Context(), x))
	_, err := s.writer.db.ExecContext(t.Context(), "UPDATE events SET expires = 1, purge = 1")
	commontest.OK(t, err)
	commontest.OK(t, s.Sweep(t.Context()))
	commontest.SameIn(t, "batches of a session that is gone", 0, count(t, s, "events"))
}

func TestDurableValuesOfASessionGoWithItAndOthersStay(t *testing.T) {
	s := fresh(t)
	created := time.Now().UTC()
	keys := map[string]storage.ValueKey{}
	for _, name := range []string{"here", "gone"} {
		x := storage.Session{ID: storage.ID(name), Created: created, Expires: created.Add(time.Hour)}
		keys[name] = storage.ValueKey{Tenant: "acme", Server: "a", Scope: storage.ValueOfSession, Of: name, Since: created, Name: "n"}
		commontest.OK(t, s.Create(t.Context(), x))
	}
	keys["server"] = storage.ValueKey{Tenant: "acme", Server: "a", Scope: storage.ValueOfServer, Name: "n"}
	for _, k := range keys {
		_, err := s.SaveValue(t.Context(), storage.Value{Key: k, Data: []byte("1")})
		commontest.OK(t, err)
	}
	gone := storage.Session{ID: "gone", Rev: 1, Created: created, Expires: created.Add(-time.Hour)}
	commontest.OK(t, s.Save(t.Context(), gone))
	commontest.OK(t, s.Sweep(t.Context()))
	for name, k := range keys {
		v, err := s.LoadValue(t.Context(), k)
		commontest.SameIn(t, name, []any{name != "gone", nil}, []any{v.Rev != 0, err})
	}
	_, err := s.SaveValue(t.Context(), storage.Value{Key: keys["gone"], Data: []byte("1")})
	wantCode(t, "SaveValue after the session", err, storage.NotFound)
}

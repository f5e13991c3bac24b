package storagetest

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// aBatch returns a batch of the request stream "r1" of session "s1".
func aBatch(first storage.Index, events ...string) storage.Batch {
	b := storage.Batch{Session: "s1", Stream: "r1", First: first, Gen: 1, Seq: int64(first), Expires: future()}
	for _, e := range events {
		b.Events = append(b.Events, []byte(e))
	}
	return b
}

// numbered returns n events. Their texts are the numbers from first on.
func numbered(first storage.Index, n int) []string {
	events := make([]string, n)
	for i := range events {
		events[i] = fmt.Sprint(first + storage.Index(i))
	}
	return events
}

func put(t *testing.T, s storage.Store, batches ...storage.Batch) {
	t.Helper()
	for _, b := range batches {
		noError(t, fmt.Sprintf("Append at %d", b.First), s.Append(t.Context(), b))
	}
}

func read(t *testing.T, s storage.Store, after storage.Index, limit int) storage.Page {
	t.Helper()
	p, err := s.Read(t.Context(), "s1", "r1", after, limit)
	noError(t, fmt.Sprintf("Read after %d", after), err)
	return p
}

// raws returns the events of a page, and checks that their indexes are consecutive.
func raws(t *testing.T, p storage.Page) []string {
	t.Helper()
	var out []string
	for i, e := range p.Events {
		if want := p.Events[0].Index + storage.Index(i); e.Index != want {
			t.Fatalf("event %d of the page has index %d, want %d", i, e.Index, want)
		}
		out = append(out, string(e.Raw))
	}
	return out
}

func appendPromises() []promise {
	return []promise{
		{"events are kept byte for byte", bytesSurvive},
		{"the same batch again is stored once", func(t *testing.T, k *kit) {
			put(t, k, aBatch(1, `{"a":1}`, `2`))
			put(t, k.other(t), aBatch(1, `{"a":1}`, `2`))
			put(t, k, aBatch(3, `3`), aBatch(1, `{"a":1}`, `2`))
			same(t, "events", raws(t, read(t, k, 0, 10)), []string{`{"a":1}`, `2`, `3`})
		}},
		{"anything else at an index that is taken is a Conflict", appendConflict},
		{"of many writers at one index one wins", func(t *testing.T, k *kit) {
			won := race(t, k, 8, func(s storage.Store, i int) error {
				return s.Append(t.Context(), aBatch(1, fmt.Sprint(i), "x"))
			})
			same(t, "events", raws(t, read(t, k, 0, 10)), []string{fmt.Sprint(won), "x"})
		}},
		{"a batch holds 1,000 events", func(t *testing.T, k *kit) {
			put(t, k, aBatch(1, numbered(1, 1000)...))
			same(t, "events", raws(t, read(t, k, 0, 1000)), numbered(1, 1000))
		}},
		{"a batch holds 16 MiB", func(t *testing.T, k *kit) {
			big := strings.Repeat("0123456789abcdef", 1<<20)
			put(t, k, aBatch(1, big))
			p := read(t, k, 0, 10)
			if len(p.Events) != 1 || string(p.Events[0].Raw) != big {
				t.Fatalf("%d events, want the one of %d bytes", len(p.Events), len(big))
			}
		}},
		{"batches are copied", func(t *testing.T, k *kit) {
			b := aBatch(1, `1`, `2`)
			put(t, k, b)
			b.Events[0][0] = 'z'
			for range 2 {
				p := read(t, k, 0, 10)
				same(t, "events", raws(t, p), []string{`1`, `2`})
				p.Events[0].Raw[0] = 'z'
				_ = append(p.Events[0].Raw, "zzz"...)
			}
		}},
		{"streams and sessions are apart", apart},
		{"Tail is the last batch", tails},
		{"Newest is the request stream that begun last", newest},
	}
}

func bytesSurvive(t *testing.T, k *kit) {
	events := []string{
		rawJSON, `{}`, `""`, "\"\u0080\u07ff\u0800\uffff\U0010ffff\"", "\"\x00\x01\x7f\"", "\"\xff\xfe half a rune \xe2\x82\"",
		"  \t{\"id\" : 1}\r", strings.Repeat("é", 100_000), `"\n"`, "'; DROP TABLE events; --", "last",
	}
	b := aBatch(1, events...)
	b.Final = true
	put(t, k, b)
	same(t, "events", raws(t, read(t, k.other(t), 0, 100)), events)
	same(t, "an event in the middle", raws(t, read(t, k, 8, 1)), []string{`"\n"`})
}

func appendConflict(t *testing.T, k *kit) {
	put(t, k, aBatch(1, `1`, `2`), aBatch(3, `3`))
	for name, change := range map[string]func(*storage.Batch){
		"other bytes":         func(b *storage.Batch) { b.Events[1] = []byte(`x`) },
		"more events":         func(b *storage.Batch) { b.Events = append(b.Events, []byte(`x`)) },
		"fewer events":        func(b *storage.Batch) { b.Events = b.Events[:1] },
		"events joined":       func(b *storage.Batch) { b.Events = [][]byte{[]byte(`12`)} },
		"another sequence":    func(b *storage.Batch) { b.Seq++ },
		"another generation":  func(b *storage.Batch) { b.Gen++ },
		"an older generation": func(b *storage.Batch) { b.Gen-- },
		"an end":              func(b *storage.Batch) { b.Final = true },
		"a retry":             func(b *storage.Batch) { b.Retry = time.Second },
	} {
		b := aBatch(1, `1`, `2`)
		change(&b)
		wantCode(t, name, k.Append(t.Context(), b), storage.Conflict)
	}
	again := aBatch(1, `1`, `2`)
	noError(t, "the same again", k.Append(t.Context(), again))
	again.Once = true
	wantCode(t, "the same, to be written once", k.Append(t.Context(), again), storage.Duplicate)
	once := aBatch(4, `4`)
	once.Once = true
	noError(t, "another, to be written once", k.Append(t.Context(), once))
	same(t, "events", raws(t, read(t, k, 0, 10)), []string{`1`, `2`, `3`, `4`})
}

func apart(t *testing.T, k *kit) {
	streams := []storage.Batch{
		{Session: "s1", Stream: "r1"},
		{Session: "s1", Stream: storage.Standalone},
		{Session: "s1", Stream: "r"},
		{Session: "s1", Stream: "r11"},
		{Session: "s2", Stream: "r1"},
		{Session: "s", Stream: "1r1"},
	}
	for i, b := range streams {
		b.First, b.Gen, b.Seq, b.Expires = 1, 1, 1, future()
		b.Events = [][]byte{fmt.Append(nil, "event of stream ", i)}
		put(t, k, b)
	}
	for i, b := range streams {
		p, err := k.Read(t.Context(), b.Session, b.Stream, 0, 10)
		noError(t, "Read", err)
		same(t, "events", raws(t, p), []string{fmt.Sprint("event of stream ", i)})
	}
}

func tails(t *testing.T, k *kit) {
	check := func(stream storage.StreamID, want storage.Tail) {
		t.Helper()
		got, err := k.Tail(t.Context(), "s1", stream)
		noError(t, "Tail", err)
		same(t, "Tail", got, want)
	}
	for _, stream := range []storage.StreamID{"r1", storage.Standalone} {
		check(stream, storage.Tail{})
		b := aBatch(1, `1`, `2`, `3`)
		b.Stream, b.Gen, b.Seq = stream, 4, 9
		put(t, k, b)
		check(stream, storage.Tail{Last: 3, Gen: 4, Seq: 9})
		b = aBatch(4, `4`)
		b.Stream, b.Gen, b.Seq, b.Final = stream, 5, 1, true
		put(t, k, b)
		check(stream, storage.Tail{Last: 4, Gen: 5, Seq: 1, Final: true})
	}
	got, err := k.Tail(t.Context(), "s2", "r1")
	noError(t, "Tail in another session", err)
	same(t, "Tail in another session", got, storage.Tail{})
}

func newest(t *testing.T, k *kit) {
	check := func(want storage.StreamID) {
		t.Helper()
		got, err := k.Newest(t.Context(), "s1")
		noError(t, "Newest", err)
		same(t, "Newest", got, want)
	}
	check(storage.Standalone)
	older, newer, foreign := storage.NewStreamID(), storage.NewStreamID(), storage.NewStreamID()
	b := aBatch(1, `1`)
	b.Stream = storage.Standalone
	put(t, k, b)
	check(storage.Standalone)
	b.Stream = newer
	put(t, k, b)
	check(newer)
	b.Stream = older
	put(t, k, b)
	check(newer)
	b.Stream, b.Session = foreign, "s2"
	put(t, k, b)
	check(newer)
}

func readPromises() []promise {
	return []promise{
		{"a read is strictly after its cursor, also inside a batch", func(t *testing.T, k *kit) {
			put(t, k, aBatch(1, `1`), aBatch(2, `2`, `3`, `4`, `5`), aBatch(6, `6`, `7`))
			for after := range storage.Index(8) {
				p := read(t, k, after, 100)
				same(t, fmt.Sprintf("events after %d", after), raws(t, p), numbered(after+1, 7-int(after)))
				same(t, fmt.Sprintf("More and Gap after %d", after), []bool{p.More, p.Gap}, []bool{false, false})
				if len(p.Events) > 0 {
					same(t, "first index", p.Events[0].Index, after+1)
				}
			}
		}},
		{"a page is bounded and says whether there is more", func(t *testing.T, k *kit) {
			put(t, k, aBatch(1, `1`), aBatch(2, `2`, `3`, `4`, `5`), aBatch(6, `6`, `7`))
			for after := range storage.Index(7) {
				for limit := 1; limit <= 8; limit++ {
					p, rest := read(t, k, after, limit), 7-int(after)
					same(t, fmt.Sprintf("%d events after %d", limit, after), raws(t, p), numbered(after+1, min(limit, rest)))
					same(t, fmt.Sprintf("More in %d after %d", limit, after), p.More, limit < rest)
				}
			}
		}},
		{"10,000 events are read page by page, whole", func(t *testing.T, k *kit) {
			const events, batch = 10_000, 250
			for first := storage.Index(1); first <= events; first += batch {
				put(t, k, aBatch(first, numbered(first, batch)...))
			}
			after, pages := 0, 0
			for more := true; more; pages++ {
				p := read(t, k, storage.Index(after), 999) // pages of 999 end inside of batches
				same(t, "events", raws(t, p), numbered(storage.Index(after+1), len(p.Events)))
				after, more = after+len(p.Events), p.More
			}
			same(t, "events and pages", []int{after, pages}, []int{events, 11})
		}},
		{"a cursor beyond the end, an unknown stream and a foreign one are empty", func(t *testing.T, k *kit) {
			put(t, k, aBatch(1, `1`, `2`))
			for _, after := range []storage.Index{2, 3, 1000, math.MaxInt64 - 1, math.MaxInt64} {
				same(t, fmt.Sprintf("page after %d", after), read(t, k, after, 10), storage.Page{})
			}
			for _, c := range []struct {
				id     storage.ID
				stream storage.StreamID
			}{{"s1", "r2"}, {"s1", storage.Standalone}, {"s2", "r1"}, {"", ""}} {
				p, err := k.Read(t.Context(), c.id, c.stream, 0, 10)
				noError(t, "Read", err)
				same(t, fmt.Sprintf("page of %q in %q", c.stream, c.id), p, storage.Page{})
			}
		}},
		{"the last event of a stream is final, and no other", func(t *testing.T, k *kit) {
			end := aBatch(3, `3`, `4`)
			end.Final = true
			put(t, k, aBatch(1, `1`, `2`), end)
			p := read(t, k, 0, 10)
			var finals []bool
			for _, e := range p.Events {
				finals = append(finals, e.Final)
			}
			same(t, "Final of the events", finals, []bool{false, false, false, true})
			same(t, "Final of the page", p.Final(), true)
			same(t, "Final of a page before the end", read(t, k, 0, 3).Final(), false)
			same(t, "Final of a page from inside the batch", read(t, k, 3, 3).Final(), true)
		}},
		{"the last event of a batch carries its retry, and no other", func(t *testing.T, k *kit) {
			pause := aBatch(1, `1`, `2`)
			pause.Retry = 1500 * time.Millisecond
			put(t, k, pause, pause, aBatch(3, `3`))
			w := soon(t, wait(t.Context(), k.other(t), 0, far()))
			noError(t, "Wait", w.err)
			for what, p := range map[string]storage.Page{"Read": read(t, k, 0, 10), "Wait": w.page} {
				var retries []time.Duration
				for _, e := range p.Events {
					retries = append(retries, e.Retry)
				}
				same(t, what+": retries", retries, []time.Duration{0, pause.Retry, 0})
			}
			same(t, "Retry of a page before it", read(t, k, 0, 1).Events[0].Retry, time.Duration(0))
			same(t, "Retry of a page from inside the batch", read(t, k, 1, 1).Events[0].Retry, pause.Retry)
			pause.Retry = time.Second
			wantCode(t, "the same with another retry", k.Append(t.Context(), pause), storage.Conflict)
		}},
		{"an event of a batch with a retry may be empty", func(t *testing.T, k *kit) {
			pause := aBatch(1, ``)
			pause.Retry = 3 * time.Second
			put(t, k, pause, aBatch(2, `2`, ``, `4`))
			p := read(t, k, 0, 10)
			same(t, "events", raws(t, p), []string{``, `2`, ``, `4`})
			same(t, "Retry", p.Events[0].Retry, pause.Retry)
		}},
		{"a front that is gone is a gap", func(t *testing.T, k *kit) {
			gone := aBatch(1, `1`, `2`, `3`)
			gone.Expires = past()
			put(t, k, gone, aBatch(4, `4`, `5`), aBatch(6, `6`))
			for after := range storage.Index(7) {
				p := read(t, k, after, 10)
				from := max(after, 3)
				same(t, fmt.Sprintf("events after %d", after), raws(t, p), numbered(from+1, 6-int(from)))
				same(t, fmt.Sprintf("Gap after %d", after), p.Gap, after < 3)
			}
		}},
		{"expired events are not found", func(t *testing.T, k *kit) {
			b := aBatch(1, `1`)
			b.Final, b.Expires = true, past()
			put(t, k, b)
			same(t, "page", read(t, k, 0, 10), storage.Page{})
			tail, err := k.Tail(t.Context(), "s1", "r1")
			noError(t, "Tail", err)
			same(t, "Tail", tail, storage.Tail{})
			stream, err := k.Newest(t.Context(), "s1")
			noError(t, "Newest", err)
			same(t, "Newest", stream, storage.Standalone)
		}},
	}
}

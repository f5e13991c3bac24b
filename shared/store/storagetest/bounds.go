package storagetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// boundPromises has the tests of the limits of a [storage.Log]: which batches it refuses, which
// ones it drops later, and which ones stay.
func boundPromises(h Harness) []promise {
	list := []promise{
		{"what is no batch is refused with Invalid, what is too much with TooLarge", refusals},
		{"a limit outside 1 to 1,000 is moved into it", func(t *testing.T, k *kit) {
			put(t, k, aBatch(1, numbered(1, 1000)...), aBatch(1001, numbered(1001, 200)...))
			for limit, want := range map[int]int{-1: 1, 0: 1, 1: 1, 1000: 1000, 1001: 1000, 1 << 40: 1000} {
				p := read(t, k, 0, limit)
				same(t, fmt.Sprintf("events of a page with limit %d", limit), len(p.Events), want)
				same(t, "More", p.More, true)
			}
		}},
		{"a page ends in front of a hole", func(t *testing.T, k *kit) {
			gone := aBatch(3, `3`, `4`)
			gone.Expires = past()
			put(t, k, aBatch(1, `1`, `2`), gone, aBatch(5, `5`))
			p := read(t, k, 0, 10)
			same(t, "events before the hole", raws(t, p), []string{`1`, `2`})
			same(t, "More and Gap", []bool{p.More, p.Gap}, []bool{true, false})
			p = read(t, k, 2, 10)
			same(t, "events behind the hole", raws(t, p), []string{`5`})
			same(t, "More and Gap", []bool{p.More, p.Gap}, []bool{false, true})
		}},
		{"an index of the standalone stream is not free when its events have expired", commonStays},
		{"an expired request stream is forgotten, whole", func(t *testing.T, k *kit) {
			old, end := aBatch(1, `old`), aBatch(2, `end`)
			old.Expires, end.Expires, end.Final = past(), past(), true
			put(t, k, old, end, aBatch(1, `new`))
			same(t, "events", raws(t, read(t, k, 0, 10)), []string{`new`})
		}},
		{"no expiry is never", func(t *testing.T, k *kit) {
			x, c, a, p := plain("s1", "acme"), aConnection("c"), anAnswer("q", `1`), storage.Part{Box: "b1", Frame: "f1", Data: []byte("x")}
			x.Expires, c.Expires, a.Expires, p.Expires = time.Time{}, time.Time{}, time.Time{}, time.Time{}
			noError(t, "Create", k.Create(t.Context(), x))
			noError(t, "PutConnection", k.PutConnection(t.Context(), c))
			putAnswer(t, k, a, true)
			noError(t, "PutPart", k.PutPart(t.Context(), p))
			got := load(t, k)
			same(t, "Expires of the session", got.Expires.IsZero(), true)
			conn, err := k.Connection(t.Context(), "c")
			noError(t, "Connection", err)
			same(t, "Connection", conn, c)
			same(t, "Answers", answers(t, k, "s1", []string{"q"}), []storage.Answer{a})
			parts, err := k.Parts(t.Context(), p.Box, p.Frame)
			noError(t, "Parts", err)
			same(t, "Parts", parts, []storage.Part{p})
			b := aBatch(1, `1`)
			b.Expires = time.Time{}
			put(t, k, b)
			same(t, "events", raws(t, read(t, k, 0, 10)), []string{`1`})
		}},
	}
	if h.Bounded != nil {
		list = append(list,
			promise{"what is over the bounds is a gap in front, and its indexes stay taken", func(t *testing.T, _ *kit) {
				s := h.Bounded(t)
				t.Cleanup(func() { noError(t, "Close", s.Close()) })
				bounded(t, s)
			}},
			promise{"the end of a kept stream stays when others are dropped", func(t *testing.T, _ *kit) {
				s := h.Bounded(t)
				t.Cleanup(func() { noError(t, "Close", s.Close()) })
				keepsEnds(t, s)
			}})
	}
	return list
}

func refusals(t *testing.T, k *kit) {
	retry := aBatch(1, `1`)
	retry.Retry = -time.Second
	for _, c := range []struct {
		name  string
		batch storage.Batch
		code  storage.Code
	}{
		{"no events", aBatch(1), storage.Invalid},
		{"index 0", aBatch(0, `1`), storage.Invalid},
		{"an index below 0", aBatch(-1, `1`), storage.Invalid},
		{"a line feed in an event", aBatch(1, `1`, "{\n}"), storage.Invalid},
		{"a negative retry", retry, storage.Invalid},
		{"1,001 events", aBatch(1, numbered(1, 1001)...), storage.TooLarge},
		{"more than 16 MiB", aBatch(1, strings.Repeat("x", 8<<20), strings.Repeat("x", 8<<20+1)), storage.TooLarge},
	} {
		wantCode(t, c.name, k.Append(t.Context(), c.batch), c.code)
	}
	same(t, "events", raws(t, read(t, k, 0, 10)), []string(nil))
}

// onStandalone returns a batch of the standalone stream of session "s1".
func onStandalone(first storage.Index, events ...string) storage.Batch {
	b := aBatch(first, events...)
	b.Stream = storage.Standalone
	return b
}

func commonStays(t *testing.T, k *kit) {
	noError(t, "Create", k.Create(t.Context(), plain("s1", "acme")))
	a, b := onStandalone(1, `1`, `2`), onStandalone(3, `3`)
	a.Expires, b.Expires = past(), past()
	put(t, k, a, b)
	p, err := k.Read(t.Context(), "s1", storage.Standalone, 0, 10)
	noError(t, "Read", err)
	same(t, "events", raws(t, p), []string(nil))
	tail, err := k.other(t).Tail(t.Context(), "s1", storage.Standalone)
	noError(t, "Tail", err)
	same(t, "Tail", tail, storage.Tail{Last: 3, Gen: 1, Seq: 3})
	for _, first := range []storage.Index{1, 3} {
		zombie := onStandalone(first, `x`)
		zombie.Gen = 2
		wantCode(t, fmt.Sprintf("Append at %d", first), k.Append(t.Context(), zombie), storage.Conflict)
	}
	put(t, k, b, onStandalone(4, `4`))
	for after, gap := range map[storage.Index]bool{0: true, 2: true, 3: false} {
		p, err := k.Read(t.Context(), "s1", storage.Standalone, after, 10)
		noError(t, "Read", err)
		same(t, fmt.Sprintf("events after %d", after), raws(t, p), []string{`4`})
		same(t, fmt.Sprintf("Gap after %d", after), p.Gap, gap)
	}
}

func bounded(t *testing.T, s storage.Store) {
	const total = 100
	noError(t, "Create", s.Create(t.Context(), plain("s1", "acme")))
	for i := storage.Index(1); i <= total; i++ {
		put(t, s, onStandalone(i, fmt.Sprint(i)))
	}
	p, err := s.Read(t.Context(), "s1", storage.Standalone, 0, 1000)
	noError(t, "Read", err)
	if n := len(p.Events); n == 0 || n > 16 || p.Events[n-1].Index != total || !p.Gap || p.More {
		t.Fatalf("%d events are left, gap %t, more %t; want at most 16, the last among them, and a gap", n, p.Gap, p.More)
	}
	raws(t, p)
	tail, err := s.Tail(t.Context(), "s1", storage.Standalone)
	noError(t, "Tail", err)
	same(t, "Tail", tail, storage.Tail{Last: total, Gen: 1, Seq: total})
	for _, first := range []storage.Index{1, 50, total} {
		zombie := onStandalone(first, `x`)
		zombie.Gen = 9
		wantCode(t, fmt.Sprintf("Append at %d", first), s.Append(t.Context(), zombie), storage.Conflict)
	}
	put(t, s, onStandalone(total, fmt.Sprint(total)), onStandalone(total+1, `next`))
}

func keepsEnds(t *testing.T, s storage.Store) {
	const kept = 100
	for i := range 2 * kept {
		b := aBatch(1, fmt.Sprint(i))
		b.Stream, b.Final = storage.StreamID(fmt.Sprintf("other%03d", i)), true
		if i%2 == 0 {
			b.Stream = storage.StreamID(fmt.Sprintf("kept%03dx", i))
		}
		put(t, s, b)
	}
	for i := range kept {
		tail, err := s.Tail(t.Context(), "s1", storage.StreamID(fmt.Sprintf("kept%03dx", 2*i)))
		noError(t, "Tail", err)
		if !tail.Final {
			t.Fatalf("the end of kept stream %d of %d is gone", i, kept)
		}
	}
}

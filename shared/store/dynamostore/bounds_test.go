package dynamostore

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestAStreamOverItsEventsLosesItsFront(t *testing.T) {
	const events, written = 20, 100
	for _, c := range []struct {
		name        string
		batch       func(first storage.Index) storage.Batch
		least, most int
	}{
		{"the standalone stream", func(first storage.Index) storage.Batch {
			b := aBatch(first, fmt.Sprint(first), "x")
			b.Stream = storage.Standalone
			return b
		}, events, events + events/looks},
		{"a request that has not ended", func(first storage.Index) storage.Batch { return aBatch(first, fmt.Sprint(first), "x") }, written, written},
		{"a request that has ended", func(first storage.Index) storage.Batch {
			b := aBatch(first, fmt.Sprint(first), "x")
			b.Final = first+1 == written
			return b
		}, events, events},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t, Options{Events: events})
			for first := storage.Index(1); first < written; first += 2 {
				add(t, s, c.batch(first))
			}
			stream := c.batch(1).Stream
			got, p := indexes(t, s, stream, 0, 1000)
			if len(got) > c.most || len(got) < c.least || got[len(got)-1] != written || p.Gap != (got[0] > 1) || p.More {
				t.Fatalf("events %v, gap %t, more %t, want the last %d to %d", got, p.Gap, p.More, c.least, c.most)
			}
			tail, err := s.Tail(t.Context(), "s1", stream)
			if err != nil || tail.Last != written {
				t.Errorf("Tail is %v, %v, want %d", tail, err, written)
			}
			zombie := c.batch(1)
			zombie.Gen = 9
			commontest.EqualIn(t, "a write where a batch was dropped", storage.Conflict, storage.CodeOf(s.Append(t.Context(), zombie)))
			if err := s.Append(t.Context(), c.batch(1)); err != nil {
				t.Errorf("the dropped batch itself again: %v, want nothing", err)
			}
		})
	}
}

func TestAStreamOverItsBytesLosesItsFrontWithItsParts(t *testing.T) {
	s := open(t, Options{Bytes: 1 << 20})
	for first := range storage.Index(4) {
		b := aBatch(first+1, strings.Repeat("x", 400<<10))
		b.Stream = storage.Standalone
		add(t, s, b)
	}
	got, p := indexes(t, s, storage.Standalone, 0, 10)
	if len(got) != 2 || got[0] != 3 || !p.Gap {
		t.Errorf("events %v, gap %t, want 3 and 4 and a gap", got, p.Gap)
	}
	commontest.EqualIn(t, "parts are left, want the 4 of two batches", 4, len(rows(t, s, "Z#")))
}

func TestTheLastBatchIsNeverDropped(t *testing.T) {
	s := open(t, Options{Events: 2, Bytes: 10})
	b := aBatch(1, "0123456789", "0123456789", "0123456789")
	b.Stream = storage.Standalone
	add(t, s, b)
	if got, p := indexes(t, s, storage.Standalone, 0, 10); len(got) != 3 || p.Gap {
		t.Errorf("events %v, gap %t, want all", got, p.Gap)
	}
}

package relayserver_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

var hostileFor = flag.Duration("hostile.for", 0, "TestHostileRunner sends mutated frames for so long, and 20,000 of them at least")

// TestHostileRunner sends frames of every type as the runner of a box of tenant t. It
// mutates their tickets, generations, boxes, names and lengths, and recombines them. No
// row of tenant a may change, and nothing may be posted to its runner. A frame without
// a good ticket or the id of the runner may cost one read at most.
func TestHostileRunner(t *testing.T) {
	s := newSiege(t)
	before := s.honest()
	rng := rand.New(rand.NewPCG(1, 2))
	types := []frame.Type{
		frame.TypeHello, frame.TypePull, frame.TypeTaken, frame.TypeAsk, frame.TypeReturn, frame.TypeEvents, frame.TypeStatus, frame.TypeBye, frame.TypePart, frame.TypeWhole,
		frame.Get, frame.Put, frame.Done, frame.Forget, frame.TypeDeliver, "unknown",
	}
	for end, n := time.Now().Add(*hostileFor), 0; n < 20_000 || time.Now().Before(end); n++ {
		f := s.mutant(rng, types[n%len(types)])
		data := frametest.Encode(f)
		if rng.IntN(10) == 0 {
			data = damage(rng, data)
		}
		s.store.Reset()
		s.posts, s.to = nil, nil
		_, err := s.raw(data)
		if err != nil && storage.CodeOf(err) != storage.Invalid {
			t.Fatalf("%s: %v\n%.500s", f.Type, err, data)
		}
		if slices.Contains(s.to, "conn-a") {
			t.Fatalf("posted to the runner of another tenant\n%.500s", data)
		}
		if c := s.store.Counts(); !s.hasGood(f) && f.Runner != "r" && c.Reads > 1 {
			t.Fatalf("a frame without a ticket costs %d reads: %v\n%.500s", c.Reads, c.Calls, data)
		}
		if n%500 == 499 {
			if diff := cmp.Diff(before, s.honest()); diff != "" {
				t.Fatalf("rows of another tenant have changed (-before +after):\n%s\nby about\n%.500s", diff, data)
			}
		}
	}
}

// honest returns everything that belongs to tenant a.
func (s *siege) honest() (rows []any) {
	s.t.Helper()
	ctx := context.Background()
	keep := func(v any, err error) { rows = append(rows, v, fmt.Sprint(err)) }
	b, err := s.memory.Box(ctx, honestBox)
	keep(b, err)
	items, err := s.memory.Items(ctx, honestBox)
	keep(items, err)
	for _, id := range []storage.ID{"a1", "a2"} {
		v, _, err := s.memory.Load(ctx, id, "")
		keep(v, err)
		for _, stream := range []storage.StreamID{storage.Standalone, storage.LegacySSE, "d1", "d2", "waits"} {
			page, err := s.memory.Read(ctx, id, stream, 0, 100)
			keep(page, err)
		}
	}
	for n := range frame.MaxTransfers {
		parts, err := s.memory.Parts(ctx, honestBox, fmt.Sprint(n))
		keep(parts, err)
	}
	for _, digest := range []string{"digest", "other"} {
		h, err := s.memory.Handshake(ctx, digest+"-of-a", "2025-11-25")
		keep(h, err)
	}
	return rows
}

// tickets returns the tickets that a hostile runner may have. The good ones are its own,
// of all ages. The bad ones it has copied from elsewhere or made up.
func (s *siege) tickets() (good, bad []string) {
	for _, id := range []storage.ID{"s1", "s2"} {
		for _, stream := range []storage.StreamID{"d1", "d2"} {
			good = append(good, s.ticket(id, stream, asylumBox, asylumGen), s.ticket(id, stream, asylumBox, asylumGen-1))
		}
	}
	for _, id := range []storage.ID{"a1", "a2"} {
		bad = append(bad, s.ticket(id, "d1", honestBox, honestGen))
	}
	return good, append(bad, "", "AAAA", "%%%", good[0][:len(good[0])-3], good[0]+"A")
}

// hasGood reports whether a frame has a ticket that was given to its box.
func (s *siege) hasGood(f frametest.Frame) bool {
	own := func(sealed string) bool {
		t, err := s.config.Sealer.Open(sealed)
		return err == nil && t.Box == asylumBox
	}
	return own(f.Ticket) || slices.ContainsFunc(f.Tickets, own) ||
		slices.ContainsFunc(f.Items, func(it frame.EventItem) bool { return own(it.Ticket) })
}

// mutant returns a frame of a kind that can have an effect, with something wrong in it.
func (s *siege) mutant(rng *rand.Rand, kind frame.Type) frametest.Frame {
	box := pick(rng, asylumBox, asylumBox, asylumBox, honestBox, "", "a/s/", "x/y")
	good, bad := s.tickets()
	if box == honestBox {
		bad = bad[2:] // a runner with these would be the honest one
	}
	ticket := func() string {
		if rng.IntN(3) > 0 {
			return good[rng.IntN(len(good))]
		}
		return bad[rng.IntN(len(bad))]
	}
	number := func() int64 {
		return []int64{0, 1, 2, 3, 5, 6, -1, 63, 64, 1 << 31, 1<<63 - 1}[rng.IntN(11)]
	}
	f := frametest.Frame{
		Type:    kind,
		Box:     box,
		Gen:     pick(rng, asylumGen, asylumGen, asylumGen-1, asylumGen+1, honestGen, storage.Generation(number())),
		Runner:  pick(rng, "r", "r", "runner-b", "", "x"),
		Task:    pick(rng, "task", "task-a", ""),
		Token:   pick(rng, "", "guess"),
		Link:    number(),
		Session: pick[storage.ID](rng, "s1", "s2", "a1", "a2", ""),
		ID:      pick[storage.StreamID](rng, "d1", "d2", "waits", ""),
		Round:   int(number() % 5), N: number(), Of: int(number() % 1000), Seq: number(), NotAfter: time.Now().UnixMilli() + number()%1000,
		Frame: pick(rng, "0.a", "1.b", "64.c", "", "0."), Owner: pick(rng, "s1", "a1", "../a"), Object: pick(rng, "o", ""), Size: number(),
		Detail: pick(rng, "2025-11-25", "x"), Era: pick(rng, "", "modern", "legacy", "?"), Inbox: rng.IntN(2) == 0,
		Payload: []byte(pick(rng, "", `{}`, `{"evil":true}`, "a\nb", strings.Repeat("x", 1000))),
	}
	if rng.IntN(2) == 0 {
		f.Ticket = ticket()
	}
	if kind == frame.TypeHello && rng.IntN(2) == 0 {
		f.Questions = map[storage.ID][]string{f.Session: {"q"}, "a1": {"q"}}
	}
	for range rng.IntN(3) {
		f.Tickets = append(f.Tickets, ticket())
	}
	for range rng.IntN(4) {
		f.Items = append(f.Items, s.mutantItem(rng, ticket(), number))
	}
	return f
}

func (s *siege) mutantItem(rng *rand.Rand, ticket string, number func() int64) frame.EventItem {
	it := frame.EventItem{
		Ticket: ticket, Stream: pick[storage.StreamID](rng, "d1", "d2", storage.Standalone, storage.LegacySSE, "waits"), First: storage.Index(number()),
		Final: rng.IntN(2) == 0, Marked: rng.IntN(2) == 0, Lens: []int{pick(rng, 13, 2, 0, -1, 1<<62)},
	}
	if rng.IntN(4) == 0 {
		it.Asks = &frame.Asks{Round: int(number() % 200), Within: number(), Len: int(number()), Questions: []storage.Question{{ID: "d1.1.0", Key: "k"}}}
	}
	return it
}

func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

// damage changes bytes of a frame, or cuts it.
func damage(rng *rand.Rand, data []byte) []byte {
	data = slices.Clone(data)
	for range 1 + rng.IntN(4) {
		data[rng.IntN(len(data))] ^= byte(1 << rng.IntN(8))
	}
	if rng.IntN(3) == 0 {
		data = data[:rng.IntN(len(data))]
	}
	return data
}

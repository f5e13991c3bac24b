package relayserver_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// part is a part of a frame of the hostile box.
func part(name string, n int64, payload string) frametest.Frame {
	return frametest.Frame{
		Type: frame.TypePart, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Frame: name, N: n, Of: 1, Payload: []byte(payload),
	}
}

func TestFloodOfPartsIsBounded(t *testing.T) {
	s := newSiege(t)
	for n := range 3000 {
		_, _ = s.handle(frametest.Encode(part(fmt.Sprintf("%d.n%d", n%100, n), 0, "x")))
		_, _ = s.handle(frametest.Encode(part(fmt.Sprintf("f%d", n), 0, "x")))
	}
	places := map[string]bool{}
	for n := range 3000 {
		for _, name := range []string{fmt.Sprint(n), fmt.Sprintf("%d.n%d", n%100, n), fmt.Sprintf("f%d", n)} {
			parts, err := s.memory.Parts(t.Context(), hostileBox, name)
			commontest.OK(t, err)
			for _, p := range parts {
				places[fmt.Sprint(name, p.N)] = true
			}
		}
	}
	if len(places) > frame.MaxTransfers {
		t.Errorf("%d parts are stored", len(places))
	}
}

func TestPartsOfAnOlderFrameInThePlaceDoNotCount(t *testing.T) {
	s := newSiege(t)
	hello := frametest.Encode(frametest.Frame{Type: frame.TypeHello, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Link: 1})
	for _, f := range []frametest.Frame{part("3.old", 0, "x"), part("3.old", 1, "y"), part("3.new", 0, string(hello))} {
		if reply, err := s.handle(frametest.Encode(f)); err != nil || reply.Type != frame.TypePartOK || reply.Frame != f.Frame {
			t.Fatalf("answered with %+v, %v", reply, err)
		}
	}
	whole := frametest.Frame{Type: frame.TypeWhole, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Frame: "3.new", Of: 1}
	if reply, err := s.handle(frametest.Encode(whole)); err != nil || reply.Type != frame.TypeWelcome {
		t.Errorf("answered with %+v, %v", reply, err)
	}
	whole.Frame, whole.Of = "3.old", 2
	s.gainsNothing("the older frame", frametest.Encode(whole))
}

func TestAnswersOfAForeignSessionAreNotGivenAway(t *testing.T) {
	s := newSiege(t)
	for _, id := range []storage.ID{"a1", "m1"} {
		if _, err := s.memory.PutAnswer(t.Context(), storage.Answer{
			Session: id, Question: "q", Raw: []byte(`{"secret":"` + id + `"}`), Expires: time.Now().Add(time.Hour),
		}); err != nil {
			t.Fatal(err)
		}
	}
	hello := frametest.Frame{
		Type: frame.TypeHello, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Link: 1,
		Questions: map[storage.ID][]string{"a1": {"q"}, "m1": {"q"}, "nobody": {"q"}},
	}
	if f, err := s.handle(frametest.Encode(hello)); err != nil || f.Type != frame.TypeWelcome {
		t.Errorf("answered with %+v, %v", f, err)
	}
	if len(s.posts) != 1 || s.posts[0] != `conn-x {"v":1,"t":"answer","session":"m1","question":"q"}`+"\n"+`{"secret":"m1"}` {
		t.Errorf("posted %q", s.posts)
	}
}

func TestGenerationThatTheBoxDoesNotHaveIsRefused(t *testing.T) {
	s := newSiege(t)
	ticket := s.ticket("m1", "d1", hostileBox, hostileGen)
	for _, gen := range []storage.Generation{hostileGen + 1, math.MaxInt64} {
		for _, stream := range []storage.StreamID{storage.Standalone, "d1"} {
			f := s.events("m1", stream, 2, ticket)
			f.Gen = gen
			s.gainsNothing("events", frametest.Encode(f))
		}
		s.gainsNothing("taken", frametest.Encode(frametest.Frame{Type: frame.TypeTaken, Box: hostileBox, Gen: gen, Tickets: []string{ticket}}))
	}
}

// If a delivery needs no end, its mark would be an item that no function can end.
func TestTicketWithoutRequestsIsNotTaken(t *testing.T) {
	s := newSiege(t)
	ticket := s.sealer.Seal(storage.Address{Session: "m1", Stream: "d1", Box: hostileBox}, hostileGen)
	before, err := s.memory.Items(t.Context(), hostileBox)
	commontest.OK(t, err)
	s.gainsNothing("taken", frametest.Encode(frametest.Frame{Type: frame.TypeTaken, Box: hostileBox, Gen: hostileGen, Tickets: []string{ticket}}))
	after, err := s.memory.Items(t.Context(), hostileBox)
	commontest.OK(t, err)
	commontest.Same(t, before, after)
}

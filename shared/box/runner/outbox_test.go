package runner_test

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func next(n storage.Index) func(*frametest.Frame) { return func(f *frametest.Frame) { f.Next = n } }

func TestOneBatchOfASessionIsUnderWayAndTheRestGathers(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.deliver("d1", fromInbox)
		b.deliver("d2", fromInbox)
		b.says("d2", "a")
		first := b.expect(frame.TypeEvents)
		b.says("d2", "b")
		b.says("d1", "c")
		b.says(storage.Standalone, "d")
		b.ends("d2", "e")
		b.nothing()
		b.say("s2", storage.Standalone, "of another session", false)
		if f := b.expect(frame.TypeEvents); f.Session != "s2" || f.Seq != 1 {
			t.Errorf("batch %d of session %s", f.Seq, f.Session)
		}
		b.ack(frametest.Frame{Seq: 9, Session: "s1"}) // of no batch that is under way
		b.nothing()
		b.ack(first)
		second := b.expect(frame.TypeEvents)
		commontest.Equal(t, "@0 d | d2@2 b e! | d1@1 c", batchOf(second))
		if first.Seq != 1 || second.Seq != 2 || second.Session != "s1" || second.Box != benchBox || second.Gen != benchGen {
			t.Errorf("first %+v, second %+v", first, second)
		}
		if second.Items[0].Ticket != "ticket-of-s1" || second.Items[2].Ticket != "ticket-d1" {
			t.Errorf("tickets %q, %q", second.Items[0].Ticket, second.Items[2].Ticket)
		}
	})
}

func TestBatchIsSentAgainVerbatimUntilItIsAcked(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.says(storage.Standalone, "a")
		f, _ := b.received()
		b.says(storage.Standalone, "b")
		again := func() {
			t.Helper()
			g, ok := b.received()
			if !ok || g.Type != frame.TypeEvents || !bytes.Equal(g.data, f.data) {
				t.Fatalf("got %s, want %s", g.data, f.data)
			}
		}
		time.Sleep(5*time.Second - time.Millisecond)
		b.nothing()
		time.Sleep(time.Millisecond)
		again()
		b.conn.cut()
		b.welcome(b.dialed(), benchGen)
		again()
		b.ack(f.Frame, next(2))
		commontest.EqualIn(t, "batch", 2, b.expect(frame.TypeEvents).Seq)
	})
}

func TestStandaloneIndexIsLearnedOnceInAGeneration(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		step := func(raw, want string) frametest.Frame {
			t.Helper()
			b.says(storage.Standalone, raw)
			f := b.expect(frame.TypeEvents)
			commontest.Equal(t, want, batchOf(f))
			return f
		}
		b.ack(step("a", "@0 a"), next(42))
		b.ack(step("b", "@42 b"), next(43))
		b.ack(step("c", "@43 c"), next(44))
		// The box sleeps and comes back. The runner learns the indexes of the new
		// generation from the host.
		b.box.idleFrom(time.Now())
		b.send(frametest.Frame{Type: frame.TypeByeOK, Link: b.soon(frame.TypeBye, 3*time.Minute).Link})
		b.send(frametest.Frame{Type: frame.TypeNudge})
		b.welcome(b.expect(frame.TypeHello), benchGen+1)
		b.emptyInbox()
		f := step("d", "@0 d")
		commontest.EqualIn(t, "batch gen", benchGen+1, f.Gen)
		commontest.EqualIn(t, "batch seq", 4, f.Seq)
	})
}

func TestSeqGoesOnAfterTheSessionWasForgotten(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		for range 3 {
			b.says(storage.Standalone, "a")
			b.ack(b.expect(frame.TypeEvents), next(7))
		}
		b.pass(20 * time.Minute)
		b.says(storage.Standalone, "b")
		if f := b.expect(frame.TypeEvents); f.Seq != 4 || batchOf(f) != "@0 b" {
			t.Errorf("batch %d: %s", f.Seq, batchOf(f))
		}
	})
}

func TestNothingMoreIsSentForAClosedStream(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.deliver("d1", fromInbox)
		b.deliver("d2", fromInbox)
		b.says("d1", "a")
		first := b.expect(frame.TypeEvents)
		b.says("d1", "b")
		b.says("d2", "c")
		b.box.told()
		b.ack(first, func(f *frametest.Frame) { f.Closed = ids("d1") })
		equal(t, "box", b.box.told(), []string{"close s1 d1"})
		second := b.expect(frame.TypeEvents)
		commontest.Equal(t, "d2@1 c", batchOf(second))
		b.ack(second)
		b.ends("d1", "end")
		b.nothing()
		b.deliver("d1")
		b.nothing()
		equal(t, "executed again", b.box.told(), nil)
	})
}

func TestAClosedStreamLeavesItsRoomToOthers(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.deliver("d1", fromInbox)
		for range 32 {
			b.says("d1", strings.Repeat("x", 1<<20))
		}
		b.ack(b.whole(), func(f *frametest.Frame) { f.Closed = ids("d1") })
		commontest.EqualIn(t, "MiB of another stream fit", 32, flood(b)())
	})
}

func TestBatchIsBoundedUnlessOneEventIsLarger(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.deliver("d1", fromInbox)
		b.says(storage.Standalone, "first")
		f := b.expect(frame.TypeEvents)
		for _, size := range []int{3 << 20, 1 << 20, 1, 5 << 20} {
			b.says("d1", strings.Repeat("x", size))
		}
		for range 1500 {
			b.says("d1", "x")
		}
		b.ends("d1", "end")
		at := storage.Index(1)
		for _, want := range []int{2, 1, 1, 1000, 501} {
			b.ack(f, next(1))
			f = b.whole()
			if it := f.Items[0]; len(f.Items) != 1 || len(it.Lens) != want || it.First != at || it.Final != (want == 501) {
				b.t.Fatalf("%d events from %d, final %t, want %d from %d", len(it.Lens), it.First, it.Final, want, at)
			}
			at += storage.Index(want)
		}
	})
}

// whole takes the parts of the next frame, acknowledges each, and joins them when the
// runner sends whole. It returns a frame in one piece unchanged.
func (b *bench) whole() frametest.Frame {
	b.t.Helper()
	parts := map[int64][]byte{}
	for {
		f, ok := b.received()
		if !ok {
			b.t.Fatalf("no frame came after %d parts", len(parts))
		}
		switch f.Type {
		case frame.TypePart:
			if len(f.data) > frame.MaxFrame {
				b.t.Fatalf("part of %d bytes", len(f.data))
			}
			parts[f.N] = f.Payload
			b.send(frametest.Frame{Type: frame.TypePartOK, Frame: f.Frame.Frame, N: f.N})
		case frame.TypeWhole:
			var joined []byte
			for i := range f.Of {
				joined = append(joined, parts[int64(i)]...)
			}
			g, err := frametest.Decode(joined)
			if err != nil || len(parts) != f.Of {
				b.t.Fatalf("%d of %d parts: %v", len(parts), f.Of, err)
			}
			return g
		default:
			return f.Frame
		}
	}
}

func TestResponseOverTheLimitBecomesAnError(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.says(storage.Standalone, `{"jsonrpc":"2.0","method":"x","params":["`+strings.Repeat("x", frame.MaxMessage)+`"]}`)
		b.nothing() // nobody waits for a notification
		b.deliver("d1", fromInbox)
		b.ends("d1", `{"jsonrpc":"2.0","id":9007199254740993,"result":"`+strings.Repeat("x", frame.MaxMessage)+`"}`)
		f := b.expect(frame.TypeEvents)
		var got struct {
			ID    json.Number
			Error struct{ Data struct{ Bytes, Limit int } }
		}
		commontest.OK(t, json.Unmarshal(f.Payload, &got))
		if d := got.Error.Data; got.ID != "9007199254740993" || !f.Items[0].Final || d.Bytes <= frame.MaxMessage || d.Limit != frame.MaxMessage {
			t.Errorf("got %s", f.Payload)
		}
	})
}

func TestEventOfAnUnknownStreamIsDropped(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.deliver("d1", fromInbox)
		b.says("d9", "a")
		b.say("s2", "d1", "a", false)
		b.nothing()
	})
}

// flood makes a process send 1 MiB a hundred times, as fast as it can. The function that it
// returns says how often that was so far.
func flood(b *bench) (said func() int64) {
	var n atomic.Int64
	go func() {
		for range 100 {
			b.runner.Event(frame.Event{Session: "s1", Ticket: "t", Raw: bytes.Repeat([]byte("x"), 1<<20)})
			n.Add(1)
		}
	}()
	return func() int64 {
		synctest.Wait()
		return n.Load()
	}
}

func TestChattyProcessIsHeldUpUntilTheHostHasTaken(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		said := flood(b)
		commontest.Equal(t, 32, said())
		for range 5 {
			b.ack(b.whole(), next(1))
		}
		if n := said(); n < 42 || n > 50 {
			t.Errorf("%d MiB were said", n)
		}
	})
}

func TestProcessIsLetGoWhenTheRunnerEnds(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		said := flood(b)
		b.send(frametest.Frame{Type: frame.TypeFenced, Link: 1})
		_ = b.returned()
		commontest.Equal(t, 100, said())
	})
}

func TestLongHandshakeIsSentInPartsOnce(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		result := []byte(`{"instructions":"` + strings.Repeat("é", 150_000) + `"}`)
		b.runner.Status(frame.Status{Session: "s1", Ticket: "t", Detail: "2025-11-25", Payload: result})
		if f := b.whole(); f.Type != frame.TypeStatus || !bytes.Equal(f.Payload, result) {
			t.Errorf("%s of %d bytes", f.Type, len(f.Payload))
		}
		b.pass(time.Minute)
	})
}

func longText(text string) string {
	return `{"text":"` + strings.Repeat(text, 300_000/len(text)) + `"}`
}

func longRequest(id storage.StreamID, text string) [][]byte {
	f, raw := request(id, fromInbox), longText(text)
	f.Lens, f.Payload = []int{2, len(raw)}, []byte("{}"+raw)
	return frame.Cut(frametest.Encode(f), "", "frame-"+string(id))
}

func TestPartsOfTwoFramesComeInAnyOrderAndTwice(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		one, two := longRequest("d1", "é"), longRequest("d2", "€")
		for i := len(one) - 1; i >= 0; i-- {
			b.conn.in <- one[i]
			b.conn.in <- two[len(two)-1-i]
			b.conn.in <- one[i]
		}
		for _, part := range two {
			b.conn.in <- part
		}
		got := b.box.deliveries()
		if len(got) != 2 {
			t.Fatalf("%d deliveries", len(got))
		}
		text := map[storage.StreamID]string{"d1": "é", "d2": "€"}
		for _, d := range got {
			if string(d.Init) != "{}" || string(d.Raw) != longText(text[d.ID]) {
				t.Errorf("delivery %s has %d bytes, and not those that were sent", d.ID, len(d.Raw))
			}
		}
	})
}

func TestMoreLongFramesThanPlacesWaitForOne(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		const sessions = frame.MaxTransfers + 3
		for n := range sessions {
			b.say(storage.ID("s"+strconv.Itoa(n)), storage.Standalone, strings.Repeat("x", 130_000), false)
		}
		places := map[string]bool{}
		for done := 0; done < sessions; {
			f, ok := b.received()
			if !ok {
				t.Fatalf("nothing more came after %d of %d", done, sessions)
			}
			if f.Type == frame.TypeWhole {
				b.ack(frametest.Frame{Seq: 1, Session: storage.ID("s" + strconv.Itoa(done))})
				done++
				continue
			}
			place, _, _ := strings.Cut(f.Frame.Frame, ".")
			places[place] = true
			b.send(frametest.Frame{Type: frame.TypePartOK, Frame: f.Frame.Frame, N: f.N})
		}
		commontest.Equal(t, frame.MaxTransfers, len(places))
	})
}

package runner_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/runner"
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
		b.ack(first)
		second := b.expect(frame.TypeEvents)
		if got, want := batchOf(second), "@0 d | d2@2 b e! | d1@1 c"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if first.Seq != 1 || second.Seq != 2 || second.Session != "s1" || second.Box != benchBox || second.Gen != benchGen {
			t.Errorf("first %+v, second %+v", first, second)
		}
		if second.Items[0].Ticket != "ticket-of-s1" || second.Items[2].Ticket != "ticket-d1" {
			t.Errorf("tickets %q, %q", second.Items[0].Ticket, second.Items[2].Ticket)
		}
	})
}

func TestSessionsDoNotWaitForOneAnother(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.say("s1", storage.Standalone, "a", false)
		b.expect(frame.TypeEvents)
		b.say("s2", storage.Standalone, "b", false)
		if f := b.expect(frame.TypeEvents); f.Session != "s2" || f.Seq != 1 {
			t.Errorf("batch %d of session %s", f.Seq, f.Session)
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
		if g := b.expect(frame.TypeEvents); g.Seq != 2 {
			t.Errorf("batch %d came, want 2", g.Seq)
		}
	})
}

func TestAckOfAnotherBatchIsPassedOver(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.says(storage.Standalone, "a")
		first := b.expect(frame.TypeEvents)
		b.says(storage.Standalone, "b")
		b.ack(frametest.Frame{Seq: 9, Session: "s1"})
		b.ack(frametest.Frame{Seq: 1, Session: "s9"})
		b.nothing()
		b.ack(first, next(5))
		b.expect(frame.TypeEvents)
		b.ack(first, next(5))
		b.nothing()
	})
}

func TestStandaloneIndexIsLearnedOnceInAGeneration(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		step := func(raw, want string) frametest.Frame {
			t.Helper()
			b.says(storage.Standalone, raw)
			f := b.expect(frame.TypeEvents)
			if got := batchOf(f); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
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
		if f.Gen != benchGen+1 || f.Seq != 4 {
			t.Errorf("batch %d has generation %d", f.Seq, f.Gen)
		}
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
		if got, want := batchOf(second), "d2@1 c"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		b.ack(second)
		b.ends("d1", "end")
		b.nothing()
		b.deliver("d1")
		b.nothing()
		equal(t, "executed again", b.box.told(), nil)
	})
}

func TestAckThatSaysFencedStops(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.says(storage.Standalone, "a")
		b.ack(b.expect(frame.TypeEvents), func(f *frametest.Frame) { f.Fenced = true })
		b.returnedWith(storage.Fenced)
	})
}

func TestBatchHoldsAThousandEvents(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.deliver("d1", fromInbox)
		b.says(storage.Standalone, "first")
		f := b.expect(frame.TypeEvents)
		for i := range 1500 {
			b.says("d1", fmt.Sprint(i))
		}
		b.ends("d1", "end")
		b.ack(f, next(2))
		f = b.expect(frame.TypeEvents)
		if it := f.Items[0]; len(f.Items) != 1 || len(it.Lens) != 1000 || it.First != 1 || it.Final {
			t.Errorf("%d events from %d, final %t", len(it.Lens), it.First, it.Final)
		}
		b.ack(f)
		f = b.expect(frame.TypeEvents)
		if it := f.Items[0]; len(it.Lens) != 501 || it.First != 1001 || !it.Final {
			t.Errorf("%d events from %d, final %t", len(it.Lens), it.First, it.Final)
		}
	})
}

func TestBatchHoldsFourMegabytesUnlessOneEventIsLarger(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.says(storage.Standalone, "first")
		f := b.expect(frame.TypeEvents)
		for _, size := range []int{3 << 20, 1 << 20, 1, 5 << 20} {
			b.says(storage.Standalone, strings.Repeat("x", size))
		}
		for _, want := range [][]int{{3 << 20, 1 << 20}, {1}, {5 << 20}} {
			b.ack(f, next(1))
			if f = b.whole(); len(f.Items) != 1 {
				t.Fatalf("%d items", len(f.Items))
			}
			equal(t, "lengths", f.Items[0].Lens, want)
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

func TestPartsAreSentAgainThenWholeUntilTheAck(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.says(storage.Standalone, strings.Repeat("x", 250_000))
		var parts []framed
		for f, ok := b.received(); ok; f, ok = b.received() {
			parts = append(parts, f)
		}
		if len(parts) != 3 {
			t.Fatalf("%d parts", len(parts))
		}
		took := func(n int64) {
			b.send(frametest.Frame{Type: frame.TypePartOK, Frame: parts[0].Frame.Frame, N: n})
		}
		took(0)
		took(2)
		b.nothing()
		time.Sleep(5 * time.Second)
		if f := b.expect(frame.TypePart); f.N != 1 {
			t.Errorf("part %d was sent again", f.N)
		}
		b.nothing()
		b.conn.cut()
		b.welcome(b.dialed(), benchGen)
		if f := b.expect(frame.TypePart); f.N != 1 || f.Box != benchBox {
			t.Errorf("part %d of box %s was sent again", f.N, f.Box)
		}
		took(1)
		for range 3 {
			if whole := b.expect(frame.TypeWhole); whole.Frame != parts[0].Frame.Frame || whole.Of != 3 || whole.Box != benchBox {
				t.Errorf("got %+v", whole)
			}
			b.nothing()
			time.Sleep(5 * time.Second)
		}
		// The host may have let the parts expire.
		for range 3 {
			b.expect(frame.TypePart)
		}
		b.ack(frametest.Frame{Seq: 1, Session: "s1"}, next(2))
		b.pass(time.Minute)
	})
}

func TestFewPartsAreUnderWayAtATime(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.says(storage.Standalone, strings.Repeat("x", 3_000_000))
		for range 8 {
			b.expect(frame.TypePart)
		}
		b.nothing()
	})
}

func TestResponseOverTheLimitBecomesAnError(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.deliver("d1", fromInbox)
		b.ends("d1", `{"jsonrpc":"2.0","id":9007199254740993,"result":"`+strings.Repeat("x", frame.MaxMessage)+`"}`)
		f := b.expect(frame.TypeEvents)
		var got struct {
			ID    json.Number
			Error struct {
				Data struct {
					Phase        string
					Bytes, Limit int
				}
			}
		}
		commontest.OK(t, json.Unmarshal(f.Payload, &got))
		if d := got.Error.Data; got.ID != "9007199254740993" || d.Phase != "tool_call" || d.Bytes <= frame.MaxMessage || d.Limit != frame.MaxMessage {
			t.Errorf("got %s", f.Payload)
		}
		if !f.Items[0].Final {
			t.Error("the error does not end its stream")
		}
	})
}

func TestNotificationOverTheLimitIsLeftOut(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.says(storage.Standalone, `{"jsonrpc":"2.0","method":"x","params":["`+strings.Repeat("x", frame.MaxMessage)+`"]}`)
		b.nothing()
		b.says(storage.Standalone, "next")
		if got := batchOf(b.expect(frame.TypeEvents)); got != "@0 next" {
			t.Errorf("got %q", got)
		}
	})
}

func TestBytesThatAreNotUTF8AreReplaced(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.says(storage.Standalone, "a\xff\xfeb\xc3")
		if got := batchOf(b.expect(frame.TypeEvents)); got != "@0 a\uFFFDb\uFFFD" {
			t.Errorf("got %q", got)
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

// flood makes a process send 1 MiB a hundred times, as fast as it can, and counts the
// events.
func flood(b *bench) *atomic.Int64 {
	var said atomic.Int64
	go func() {
		for range 100 {
			b.runner.Event(runner.Event{Session: "s1", Ticket: "t", Raw: bytes.Repeat([]byte("x"), 1<<20)})
			said.Add(1)
		}
	}()
	synctest.Wait()
	return &said
}

func TestChattyProcessIsHeldUpUntilTheHostHasTaken(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		said := flood(b)
		if n := said.Load(); n != 32 {
			t.Errorf("%d MiB were said", n)
		}
		for range 5 {
			b.ack(b.whole(), next(1))
		}
		synctest.Wait()
		if n := said.Load(); n < 42 || n > 50 {
			t.Errorf("%d MiB were said", n)
		}
		// Another session is not held up.
		b.say("s2", storage.Standalone, "a", false)
	})
}

func TestProcessIsLetGoWhenTheConnectionIsLostForLong(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		said := flood(b)
		b.wire.set(true)
		b.conn.cut()
		time.Sleep(time.Minute - time.Second)
		synctest.Wait()
		if n := said.Load(); n != 32 {
			t.Errorf("%d MiB were said", n)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := said.Load(); n != 100 {
			t.Errorf("%d MiB were said", n)
		}
	})
}

func TestProcessIsLetGoWhenTheRunnerEnds(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		said := flood(b)
		b.send(frametest.Frame{Type: frame.TypeFenced, Link: 1})
		_ = b.returned()
		synctest.Wait()
		if n := said.Load(); n != 100 {
			t.Errorf("%d MiB were said", n)
		}
	})
}

func TestLongHandshakeIsSentInPartsOnce(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		result := []byte(`{"instructions":"` + strings.Repeat("é", 150_000) + `"}`)
		b.runner.Status(runner.StatusReport{Session: "s1", Ticket: "t", Detail: "2025-11-25", Handshake: result})
		if f := b.whole(); f.Type != frame.TypeStatus || !bytes.Equal(f.Payload, result) {
			t.Errorf("%s of %d bytes", f.Type, len(f.Payload))
		}
		b.pass(time.Minute)
	})
}

func TestHelloOvertakesWhatIsStillToBeWritten(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.wire.jam <- struct{}{}
		b.says(storage.Standalone, strings.Repeat("x", 700_000))
		time.Sleep(20 * time.Second)
		<-b.wire.jam
		b.expect(frame.TypePart) // was being written
		b.expect(frame.TypeHello)
	}, func(c *runner.Config) { c.PingEvery = 15 * time.Second })
}

package runner_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// asking returns the Suspension that a box sends with the last question of a round.
func asking(stream storage.StreamID, round int, raw string) *runner.Suspension {
	return &runner.Suspension{
		Questions: []storage.Question{{ID: storage.QuestionID(stream, round, 0), Key: "k", Method: wire.MethodElicit}},
		Raw:       []byte(raw), Within: time.Hour,
	}
}

// suspends makes the box ask something and suspend a delivery of session s1.
func (b *bench) suspends(stream storage.StreamID, raw string, asks *runner.Suspension) {
	go b.runner.Event(runner.Event{Session: "s1", Stream: stream, Raw: []byte(raw), Asks: asks})
	synctest.Wait()
}

const againRaw = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"requestState":"s"}}`

func inRound(round int, base storage.Index) func(*frametest.Frame) {
	return func(f *frametest.Frame) { f.Inbox, f.Round, f.Base = true, round, base }
}

func TestSuspensionGoesWithTheQuestions(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.deliver("d1")
		b.says("d1", `{"p":1}`)
		first := b.expect(frame.TypeEvents)
		commontest.EqualIn(t, "progress without a trace", 1, len(first.Tickets))
		b.ack(first)
		b.suspends("d1", `{"q":1}`, asking("d1", 1, againRaw))
		f := b.expect(frame.TypeEvents)
		want := []frame.EventItem{{
			Ticket: "ticket-d1", Stream: "d1", First: 2, Marked: true, Lens: []int{7},
			Asks: &frame.Asks{Round: 1, Questions: asking("d1", 1, "").Questions, Within: 3_600_000, Len: len(againRaw)},
		}}
		if diff := cmp.Diff(want, f.Items); diff != "" || string(f.Payload) != `{"q":1}`+againRaw || len(f.Tickets) > 0 {
			t.Errorf("payload %s, tickets %v: %s", f.Payload, f.Tickets, diff)
		}
		b.says("d1", `{"late":1}`) // nothing comes of a suspended call
		b.ack(f)
		b.nothing()
	})
}

func TestNextRoundIsAnotherDelivery(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.deliver("d1")
		b.suspends("d1", `{"q":1}`, asking("d1", 1, againRaw))
		f := b.expect(frame.TypeEvents)
		b.deliver("d1", inRound(1, 1)) // the next round comes before the ack
		b.ack(f)
		b.deliver("d1", fromInbox)     // of a round that is over
		b.deliver("d1", inRound(1, 1)) // twice
		b.says("d1", `{"p":2}`)
		progress := b.expect(frame.TypeEvents)
		commontest.EqualIn(t, "the next round says", `d1@2 {"p":2}`, batchOf(progress))
		b.ack(progress)
		b.suspends("d1", `{"q":2}`, asking("d1", 2, againRaw))
		f = b.expect(frame.TypeEvents)
		if got := f.Items[0]; got.First != 3 || got.Asks == nil || got.Asks.Round != 2 || !got.Marked {
			t.Errorf("it is suspended again as %+v", got)
		}
		b.ack(f)
		b.deliver("d1", inRound(2, 3))
		b.ends("d1", `{"end":1}`)
		f = b.expect(frame.TypeEvents)
		if got := batchOf(f); got != `d1@4 {"end":1}!` || !f.Items[0].Marked {
			t.Errorf("the last round says %s", got)
		}
		b.ack(f)
		var rounds []int
		for _, d := range b.box.deliveries() {
			rounds = append(rounds, d.Round)
		}
		equal(t, "rounds executed", rounds, []int{0, 1, 2})
		b.box.idleFrom(time.Now())
		b.soon(frame.TypeBye, 3*time.Minute)
	})
}

func TestPullGoesOnUntilTheRoundHasComeThatWasToldOf(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.deliver("d1")
		b.suspends("d1", `{"q":1}`, asking("d1", 1, againRaw))
		b.ack(b.expect(frame.TypeEvents))
		b.send(frametest.Frame{Type: frame.TypeNudge})
		pull := b.expect(frame.TypePull)
		b.send(frametest.Frame{Type: frame.TypePulled, N: pull.N, IDs: ids("d1"), Rounds: map[storage.StreamID]int{"d1": 1}})
		time.Sleep(2 * time.Second)
		b.expect(frame.TypePull)
		b.deliver("d1", fromInbox) // a copy of the first round is not the delivery that was suspended later
		time.Sleep(2 * time.Second)
		b.expect(frame.TypePull)
		b.deliver("d1", inRound(1, 1))
		b.pass(time.Minute)
		equal(t, "executed", b.box.told(), []string{"deliver d1", "deliver d1"})
	})
}

func TestCallThatCannotBeSuspendedEnds(t *testing.T) {
	long := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"x":"` + strings.Repeat("x", frame.MaxMessage) + `"}}`
	many := asking("d1", 1, againRaw)
	for range 100 {
		many.Questions = append(many.Questions, many.Questions[0])
	}
	for what, asks := range map[string]*runner.Suspension{"too long": asking("d1", 1, long), "too many": many, "none": {Raw: []byte(againRaw), Within: time.Hour}} {
		t.Run(what, func(t *testing.T) {
			onAwakeBench(t, func(b *bench) {
				b.deliver("d1")
				b.suspends("d1", `{"q":1}`, asks)
				f := b.expect(frame.TypeEvents)
				m, err := wire.Parse(f.Payload)
				if err != nil || !f.Items[0].Final || f.Items[0].Asks != nil || string(m.ID) != "1" || m.Error == nil {
					t.Errorf("it says %s", batchOf(f))
				}
			})
		})
	}
	t.Run("too often", func(t *testing.T) {
		onAwakeBench(t, func(b *bench) {
			b.deliver("d1", inRound(storage.MaxRounds, 7))
			b.suspends("d1", `{"q":1}`, asking("d1", storage.MaxRounds+1, againRaw))
			if f := b.expect(frame.TypeEvents); !f.Items[0].Final || f.Items[0].First != 8 {
				t.Errorf("it says %s", batchOf(f))
			}
		})
	})
}

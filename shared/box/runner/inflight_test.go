package runner_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func TestDeliverHandsOverWhatTheClientSaid(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.deliver("d1", func(f *frametest.Frame) { f.Level, f.Subscribed = "debug", []string{"file:///a"} })
		b.deliver("d2", func(f *frametest.Frame) { f.AckWithin = 0 })
		want := frame.Deliver{
			ID: "d1", Session: "s1", Ticket: "ticket-d1", Level: "debug", Subscribed: []string{"file:///a"}, Init: []byte("{}"),
			Raw: []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`),
		}
		got := b.box.deliveries()
		want.Gen, want.NotAfter, want.AckWithin, want.Lens = got[0].Gen, got[0].NotAfter, got[0].AckWithin, got[0].Lens
		commontest.Same(t, want, got[0])
	})
}

func TestPullIsRepeatedUntilEverythingHasCome(t *testing.T) {
	onBench(t, func(b *bench) {
		b.welcome(b.dialed(), benchGen)
		b.expect(frame.TypePull)
		time.Sleep(2 * time.Second)
		commontest.EqualIn(t, "repeated pull has number", 1, b.expect(frame.TypePull).N)
		b.deliver("d1", fromInbox)
		b.send(frametest.Frame{Type: frame.TypePulled, N: 1, IDs: ids("d1", "d2")})
		time.Sleep(2 * time.Second)
		b.expect(frame.TypePull) // d2 was lost
		b.deliver("d1", fromInbox)
		b.deliver("d2", fromInbox)
		b.pass(time.Minute)
		equal(t, "executed", b.box.told(), []string{"deliver d1", "deliver d2"})
	})
}

func TestNudgePullsAnew(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.send(frametest.Frame{Type: frame.TypeNudge})
		b.send(frametest.Frame{Type: frame.TypeNudge})
		commontest.EqualIn(t, "pulls have numbers", 5, b.expect(frame.TypePull).N+b.expect(frame.TypePull).N)
		b.send(frametest.Frame{Type: frame.TypePulled, N: 2}) // it may not have seen the item of the second nudge
		time.Sleep(2 * time.Second)
		commontest.EqualIn(t, "repeated pull has number", 3, b.expect(frame.TypePull).N)
	})
}

func TestDeliverIsExecutedOnceAndInFlightIsReportedAgain(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.deliver("d1", fromInbox)
		notification := func(f *frametest.Frame) { f.AckWithin = 0 }
		b.deliver("d2", notification)
		b.deliver("d2", notification)
		for _, later := range []time.Duration{0, 6 * time.Hour} {
			b.pass(later)
			b.deliver("d1")
			taken := b.expect(frame.TypeTaken)
			equal(t, "tickets", taken.Tickets, []string{"ticket-d1"})
			commontest.EqualIn(t, "taken is of box", benchGen, taken.Gen)
			commontest.EqualIn(t, "taken is of box", benchBox, taken.Box)
		}
		equal(t, "executed", b.box.told(), []string{"deliver d1", "deliver d2"})
	})
}

func TestDeliverThatMayBeOfOthersIsNotExecuted(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		late := func(f *frametest.Frame) { f.NotAfter = time.Now().Add(-time.Second).UnixMilli() }
		b.deliver("older", func(f *frametest.Frame) { f.Gen-- })
		b.deliver("newer", func(f *frametest.Frame) { f.Gen++ })
		b.deliver("late", late)
		b.deliver("no message", func(f *frametest.Frame) { f.Lens = []int{1, 1} })
		b.deliver("no lengths", func(f *frametest.Frame) { f.Lens = nil })
		b.deliver("claimed", late, fromInbox) // nobody else may end it
		equal(t, "executed", b.box.told(), []string{"deliver claimed"})
		b.runs()
	})
}

func TestDeliverWaitsForTheFirstWelcome(t *testing.T) {
	onBench(t, func(b *bench) {
		b.dialed()
		b.deliver("d1")
		b.deliver("d1")
		b.nothing()
		equal(t, "executed before", b.box.told(), nil)
		b.send(frametest.Frame{Type: frame.TypeWelcome, Gen: benchGen, Link: 1})
		equal(t, "executed after", b.box.told(), []string{"deliver d1"})
	})
}

func TestRequestsWithoutAnEndAreReportedTogether(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.deliver("d1")
		b.deliver("d2", func(f *frametest.Frame) { f.Session = "s2" })
		b.deliver("d3")
		b.deliver("d4", fromInbox) // has its trace
		b.deliver("d5")
		b.finishes("d3")
		b.ends("d5", "end")
		if f := b.expect(frame.TypeEvents); len(f.Tickets) > 0 || f.Items[0].Marked { // the end comes first, and has no ack
			t.Errorf("tickets %v, marked %t", f.Tickets, f.Items[0].Marked)
		}
		time.Sleep(time.Second - time.Millisecond)
		b.nothing()
		time.Sleep(time.Millisecond)
		taken := b.expect(frame.TypeTaken)
		slices.Sort(taken.Tickets)
		equal(t, "tickets", taken.Tickets, []string{"ticket-d1", "ticket-d2", "ticket-d5"})
	})
}

func TestProgressCarriesTheReportOfItsRequest(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.deliver("d1")
		b.says("d1", "progress")
		first := b.expect(frame.TypeEvents)
		equal(t, "tickets", first.Tickets, []string{"ticket-d1"})
		b.ack(first)
		b.says("d1", "more")
		second := b.expect(frame.TypeEvents)
		equal(t, "tickets", second.Tickets, nil)
		b.ack(second)
		b.ends("d1", "end")
		commontest.EqualIn(t, "the end says that there is an item to delete", true, b.expect(frame.TypeEvents).Items[0].Marked)
		b.pass(time.Second)
	})
}

// sentAgo sets the time at which the host posted a deliver: this long ago, by the host's
// clock.
func sentAgo(d time.Duration) func(*frametest.Frame) {
	return func(f *frametest.Frame) { f.Sent = time.Now().Add(-d).UnixMilli() }
}

func TestALateDeliverIsExecutedOnlyIfTheHostAllowsIt(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.deliver("now", sentAgo(900*time.Millisecond))
		b.deliver("notification", sentAgo(time.Minute), func(f *frametest.Frame) { f.AckWithin = 0 })
		equal(t, "executed", b.box.told(), []string{"deliver now", "deliver notification"})
		b.deliver("late", sentAgo(26*time.Second))
		b.deliver("late", sentAgo(20*time.Second))
		b.deliver("ended", sentAgo(-26*time.Second)) // the clocks differ, so its age is unknown
		if first, second := b.expect(frame.TypeAsk), b.expect(frame.TypeAsk); first.ID != "late" || second.ID != "ended" || first.Ticket == "" {
			t.Errorf("asked for %+v and %+v", first, second)
		}
		equal(t, "executed before the answer", b.box.told(), nil)
		b.send(frametest.Frame{Type: frame.TypeMay, ID: "ended", Refused: storage.Closed})
		b.send(frametest.Frame{Type: frame.TypeMay, ID: "late"})
		b.send(frametest.Frame{Type: frame.TypeMay, ID: "late"})
		equal(t, "executed after", b.box.told(), []string{"deliver late"})
	})
}

// asking returns the Suspension that a box sends with the last question of a round.
func asking(stream storage.StreamID, round int, raw string) *frame.Suspension {
	return &frame.Suspension{
		Questions: []storage.Question{{ID: storage.QuestionID(stream, round, 0), Key: "k", Method: wire.MethodElicit}},
		Raw:       []byte(raw), Within: time.Hour,
	}
}

// suspends makes the box ask something and suspend a delivery of session s1.
func (b *bench) suspends(stream storage.StreamID, raw string, asks *frame.Suspension) {
	go b.runner.Event(frame.Event{Session: "s1", Stream: stream, Raw: []byte(raw), Asks: asks})
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
		b.ends("d1", `{"end":1}`)
		f = b.expect(frame.TypeEvents)
		commontest.EqualIn(t, "it ends with", `d1@3 {"end":1}!`, batchOf(f))
		commontest.EqualIn(t, "there is an item to delete", true, f.Items[0].Marked)
		b.ack(f)
		var rounds []int
		for _, d := range b.box.deliveries() {
			rounds = append(rounds, d.Round)
		}
		equal(t, "rounds executed", rounds, []int{0, 1})
		b.box.idleFrom(time.Now())
		b.soon(frame.TypeBye, 3*time.Minute)
	})
}

func TestCallThatCannotBeSuspendedEnds(t *testing.T) {
	long := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"x":"` + strings.Repeat("x", frame.MaxMessage) + `"}}`
	for what, c := range map[string]struct {
		round int
		asks  *frame.Suspension
	}{
		"too long":     {0, asking("d1", 1, long)},
		"too often":    {storage.MaxRounds, asking("d1", storage.MaxRounds+1, againRaw)},
		"no questions": {0, &frame.Suspension{Raw: []byte(againRaw), Within: time.Hour}},
	} {
		t.Run(what, func(t *testing.T) {
			onAwakeBench(t, func(b *bench) {
				b.deliver("d1", inRound(c.round, 0))
				b.suspends("d1", `{"q":1}`, c.asks)
				f := b.expect(frame.TypeEvents)
				m, err := wire.Parse(f.Payload)
				if err != nil || !f.Items[0].Final || f.Items[0].Asks != nil || string(m.ID) != "1" || m.Error == nil {
					t.Errorf("it says %s", batchOf(f))
				}
			})
		})
	}
}

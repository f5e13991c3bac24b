package runner_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
)

func TestDeliverHandsOverWhatTheClientSaid(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.deliver("d1", func(f *frametest.Frame) {
			f.Level, f.Subscribed = "debug", []string{"file:///a", "file:///b"}
		})
		b.deliver("d2", func(f *frametest.Frame) { f.AckWithin = 0 })
		want := []runner.Delivery{
			{
				ID: "d1", Session: "s1", Ticket: "ticket-d1", Level: "debug",
				Subscribed: []string{"file:///a", "file:///b"}, Init: []byte("{}"),
				Raw: []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`), HasRequests: true,
			},
			{
				ID: "d2", Session: "s1", Ticket: "ticket-d2", Init: []byte("{}"),
				Raw: []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`),
			},
		}
		commontest.Same(t, want, b.box.deliveries())
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
		commontest.EqualIn(t, "pull has number", 2, b.expect(frame.TypePull).N)
		b.send(frametest.Frame{Type: frame.TypeNudge})
		commontest.EqualIn(t, "pull has number", 3, b.expect(frame.TypePull).N)
		b.send(frametest.Frame{Type: frame.TypePulled, N: 2}) // it may not have seen the item of the second nudge
		time.Sleep(2 * time.Second)
		commontest.EqualIn(t, "repeated pull has number", 3, b.expect(frame.TypePull).N)
		b.send(frametest.Frame{Type: frame.TypePulled, N: 3})
		b.pass(time.Minute)
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
		b.deliver("older", ofGen(benchGen-1))
		b.deliver("newer", ofGen(benchGen+1))
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
		b.deliver("d2", ofSession("s2"))
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

func TestReportIsDueAfterAReconnect(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.deliver("d1")
		b.wire.set(errDown, nil)
		b.conn.cut()
		time.Sleep(20 * time.Second)
		b.wire.set(nil, nil)
		b.welcome(b.dialed(), benchGen)
		equal(t, "tickets", b.expect(frame.TypeTaken).Tickets, []string{"ticket-d1"})
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

func TestBoxThatBlocksDoesNotBlockTheRunner(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.box.block = make(chan struct{})
		b.deliver("d1")
		b.deliver("d2")
		time.Sleep(time.Second)
		b.expect(frame.TypeTaken)
		equal(t, "executed", b.box.told(), []string{"deliver d1"})
		close(b.box.block)
		synctest.Wait()
		equal(t, "executed", b.box.told(), []string{"deliver d2"})
	})
}

package relayserver_test

import (
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// A function died during a start, and then the clock was set back by an hour.
func TestAStartThatWouldTakeLongerThanAnyIsTakenOver(t *testing.T) {
	a := newAsylum(t)
	a.changes(func(b *storage.Box) {
		b.State, b.Runner, b.Conn, b.Owner, b.TokenHash, b.Attempt = storage.Starting, "", "", "dead", "hash", 1
		b.Until = time.Now().Add(time.Hour)
	})
	a.sweep()
	if gen := a.box().Gen; gen != asylumGen+1 || a.starts != 1 {
		t.Errorf("the box is started %d times and has generation %d; want once, and %d", a.starts, gen, asylumGen+1)
	}
}

func TestACallThatWasSuspendedInTheFutureBeginsToWaitNow(t *testing.T) {
	a := newAsylum(t)
	it := a.suspended(wire.MethodElicit)
	was := it
	it.Created, it.NotAfter = it.Created.Add(24*time.Hour), it.NotAfter.Add(24*time.Hour)
	if swapped, err := a.store.SwapItem(t.Context(), was, it); err != nil || !swapped {
		t.Fatal(swapped, err)
	}
	a.sweep()
	if got := a.item(); time.Until(got.NotAfter) > 6*time.Hour || time.Until(got.NotAfter) < 5*time.Hour || len(got.Raw) == 0 || len(got.Questions) != 1 {
		t.Errorf("it waits until %s: %+v", got.NotAfter, got)
	}
}

// A poll reads the item of a call. Then the box suspends the call and falls asleep. Then
// the poll reads the record of the box.
func TestACallThatIsSuspendedWhileAPollLooksIsNotEnded(t *testing.T) {
	a := newAsylum(t)
	a.handle(frametest.Frame{Type: frame.TypeTaken, Box: asylumBox, Gen: asylumGen, Tickets: []string{a.config.Sealer.Seal(a.address(), asylumGen)}})
	f := a.suspension(1, 1, wire.MethodElicit)
	f.Items[0].Marked = true
	tracker := a.tracks(a.before("Box", func() {
		a.handle(f)
		a.handle(frametest.Frame{Type: frame.TypeBye, Box: asylumBox, Gen: asylumGen, Runner: "r", Link: 1})
	}))
	if _, err := tracker.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	tail, err := a.store.Tail(t.Context(), "s1", a.stream)
	if err != nil || tail.Final || a.item().State != storage.Suspended {
		t.Errorf("it was ended: %+v, %v; its item is %s", tail, err, a.item().State)
	}
}

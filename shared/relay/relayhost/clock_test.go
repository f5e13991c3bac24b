package relayhost_test

import (
	"context"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
	"github.com/dormouse-mcp/dormouse/shared/relay/frametest"
	"github.com/dormouse-mcp/dormouse/shared/relay/relayhost"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// A function died during a start, and then the clock was set back by an hour.
func TestAStartThatWouldTakeLongerThanAnyIsTakenOver(t *testing.T) {
	a := newAsylum(t)
	b, err := a.store.Box(t.Context(), asylumBox)
	if err != nil {
		t.Fatal(err)
	}
	b.State, b.Runner, b.Conn, b.Owner, b.TokenHash, b.Attempt = session.Starting, "", "", "dead", "hash", 1
	b.Until = time.Now().Add(time.Hour)
	if err := a.store.SaveBox(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if err := relayhost.NewSweeper(a.config).Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b, err = a.store.Box(t.Context(), asylumBox); err != nil || b.Gen != asylumGen+1 || a.starts != 1 {
		t.Errorf("it is started %d times, generation %d: %v", a.starts, b.Gen, err)
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
	if err := relayhost.NewSweeper(a.config).Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := a.item(); time.Until(got.NotAfter) > 6*time.Hour || time.Until(got.NotAfter) < 5*time.Hour || len(got.Raw) == 0 || len(got.Questions) != 1 {
		t.Errorf("it waits until %s: %+v", got.NotAfter, got)
	}
}

// between is a store that calls a function when a box record is read.
type between struct {
	session.Store
	do func()
}

func (s *between) Box(ctx context.Context, id session.BoxID) (session.Box, error) {
	if do := s.do; do != nil {
		s.do = nil
		do()
	}
	return s.Store.Box(ctx, id)
}

// A poll reads the item of a call. Then the box suspends the call and falls asleep. Then
// the poll reads the record of the box.
func TestACallThatIsSuspendedWhileAPollLooksIsNotEnded(t *testing.T) {
	a := newAsylum(t)
	a.handleAll(frametest.Frame{Type: frame.TypeTaken, Box: asylumBox, Gen: asylumGen, Tickets: []string{a.config.Sealer.Seal(a.address(), asylumGen)}})
	f := a.suspension(1, 1, wire.MethodElicit)
	f.Items[0].Marked = true
	store := &between{Store: a.store}
	config := a.config
	config.Store = store
	s, _, err := a.store.Load(t.Context(), "s1", asylumBox)
	if err != nil {
		t.Fatal(err)
	}
	tender, err := relayhost.NewBackend(config).Track(t.Context(), s, a.stream)
	if err != nil {
		t.Fatal(err)
	}
	store.do = func() {
		a.handle(f)
		a.handle(frametest.Frame{Type: frame.TypeBye, Box: asylumBox, Gen: asylumGen, Runner: "r", Link: 1})
	}
	if _, err := tender.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	tail, err := a.store.Tail(t.Context(), "s1", a.stream)
	if err != nil || tail.Final || a.item().State != session.Suspended {
		t.Errorf("it was ended: %+v, %v; its item is %s", tail, err, a.item().State)
	}
}

// handleAll handles frames that are not answered.
func (a *asylum) handleAll(frames ...frametest.Frame) {
	a.t.Helper()
	for _, f := range frames {
		if _, err := relayhost.NewHandler(a.config).Frame(a.t.Context(), "c", frametest.Encode(f)); err != nil {
			a.t.Fatalf("%s: %v", f.Type, err)
		}
	}
}

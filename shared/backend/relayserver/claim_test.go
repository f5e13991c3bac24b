package relayserver_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/intercept"
)

// A put that is repeated after its call has ended brings the item back. The log has the end.
func TestAnItemThatComesBackAfterItsEndIsNotExecutedAgain(t *testing.T) {
	a := newAsylum(t)
	a.ends()
	a.waits()
	a.handle(a.from(frame.TypePull))
	commontest.EqualIn(t, "deliveries of a call whose end is in the log", 0, len(a.posted(frame.TypeDeliver)))
	a.gone()
	a.waits()
	_, err := a.store.Claim(t.Context(), asylumBox, a.stream, asylumGen)
	commontest.OK(t, err)
	a.sweep()
	a.gone()
}

// The deliver frames of a pull may be lost with their connection, after the claim.
func TestAPullThatComesAgainDeliversAgain(t *testing.T) {
	a := newAsylum(t)
	a.waits()
	for n := range 2 {
		if f := a.handle(a.from(frame.TypePull)); len(f.IDs) != 1 || f.IDs[0] != a.stream || len(a.posted(frame.TypeDeliver)) != n+1 {
			t.Errorf("pull %d is answered with %v, after %d deliveries", n+1, f.IDs, len(a.posted(frame.TypeDeliver)))
		}
	}
}

// A call that woke a box waits in the inbox, and the function that answers the pull is not
// the one that knew its caller.
func TestAClaimedCallActsWithTheTokensOfItsOwnPrincipal(t *testing.T) {
	a := newAsylum(t)
	a.config.Secrets = func(_ context.Context, s storage.Session) (map[string]storage.Secret, error) {
		return map[string]storage.Secret{"notes": {Value: "of " + s.Principal + " of " + s.Tenant}}, nil
	}
	want := map[storage.StreamID]string{}
	for _, principal := range []string{"ada", "bob"} {
		of := a.session()
		of.ID, of.Principal, of.Rev = storage.ID("of-"+principal), principal, 0
		commontest.OK(t, a.store.Create(t.Context(), of))
		a.stream = storage.NewStreamID()
		a.waitsIn(of.ID)
		want[a.stream] = "of " + principal + " of t"
	}
	a.handle(a.from(frame.TypePull))
	got := map[storage.StreamID]string{}
	for _, d := range a.posted(frame.TypeDeliver) {
		got[d.ID] = d.Secrets["notes"].Value
	}
	commontest.SameIn(t, "the token of each call", want, got)
}

// before returns the store with something that happens once, just before the first call of a
// method.
func (a *asylum) before(method string, happens func()) storage.Store {
	return intercept.New(a.store, func(ctx context.Context, call *intercept.Call, do func(context.Context) error) error {
		if now := happens; call.Method == method && now != nil {
			happens = nil
			now()
		}
		return do(ctx)
	})
}

// A function finds the box awake, and the box says bye before the call is in the inbox: so
// the function has to look at the record after the put.
func TestABoxThatFallsAsleepBeforeTheCallIsInTheInboxIsWoken(t *testing.T) {
	inTime(t, func(t *testing.T, a *asylum) {
		seen := a.box()
		seen.State = storage.Asleep // an older look
		a.config.Store = a.before("PutItem", a.sleeps)
		d := sessions.Delivery{Address: a.address(), Client: a.session(), Server: "s", Raw: []byte(a.request("{}"))}
		_, err := a.backend().Deliver(t.Context(), d, seen)
		commontest.OK(t, err)
		if b := a.box(); b.State != storage.Starting || a.starts != 1 {
			t.Errorf("a call waits in the inbox of a box in state %q after %d starts; want one start", b.State, a.starts)
		}
	})
}

// A request may still arrive for some time after its last post, and be executed. Only then
// is it certain what the client is told: unknown now, and not executed later.
func TestACallIsGivenUpOnceItsLastPostIsTooOldToBeExecuted(t *testing.T) {
	inTime(t, func(t *testing.T, a *asylum) {
		d := sessions.Delivery{Address: a.address(), Client: a.session(), Server: "s", Raw: []byte(a.request("{}"))}
		tracker, err := a.backend().Deliver(t.Context(), d, a.box())
		commontest.OK(t, err)
		posted := time.Now()
		commontest.OK(t, tracker.(sessions.Handover).GiveUp(t.Context()))
		a.end()
		if after := time.Since(posted); after < 2*frame.LateAfter {
			t.Errorf("the call ended %s after its last post, which may be executed for up to %s", after, 2*frame.LateAfter)
		}
	})
}

// An answer of a client is for a process that sleeps with its memory. The box comes up in time,
// or the client hears that it does not.
func TestAnAnswerWaitsForTheBoxThatItHasWoken(t *testing.T) {
	for name, within := range map[string]time.Duration{"in time": 5 * time.Second, "too late": time.Minute} {
		t.Run(name, timed(func(t *testing.T, a *asylum) {
			a.changes(func(b *storage.Box) {
				b.State, b.Owner, b.Until, b.Conn = storage.Starting, "another", time.Now().Add(2*time.Minute), ""
			})
			time.AfterFunc(within, func() { a.changes(func(b *storage.Box) { b.State, b.Conn = storage.Awake, "c" }) })
			_, err := a.backend().Deliver(t.Context(), sessions.Delivery{
				Address: storage.Address{Session: "s1", Stream: "answer", Box: asylumBox}, Client: a.session(), Server: "s",
				Raw: []byte(`{"jsonrpc":"2.0","id":"q-1","result":{}}`), Wakes: true,
			}, a.box())
			if late := within > 20*time.Second; late != errors.Is(err, storage.Unavailable) || late != (len(a.posts) == 0) {
				t.Errorf("%v, %d frames", err, len(a.posts))
			}
			time.Sleep(within)
		}))
	}
}

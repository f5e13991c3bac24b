package relayserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/intercept"
)

// pulls makes the runner pull its inbox.
func (a *asylum) pulls() {
	a.t.Helper()
	if f := a.handle(frametest.Frame{Type: frame.TypePull, Box: asylumBox, Gen: asylumGen, Runner: "r", N: 1}); f.Type != frame.TypePulled {
		a.t.Fatalf("a pull is answered with %+v", f)
	}
}

// A put that is repeated after its call has ended brings the item back. The log has the end.
func TestAnItemThatComesBackAfterItsEndIsNotExecutedAgain(t *testing.T) {
	a := newAsylum(t)
	end := wire.ResultResponse(json.RawMessage("77"), []byte("{}"))
	a.handle(frametest.Frame{
		Type: frame.TypeEvents, Box: asylumBox, Gen: asylumGen, Seq: 1, Session: "s1", Payload: end,
		Items: []frame.EventItem{{Ticket: a.config.Sealer.Seal(a.address(), asylumGen), Stream: a.stream, First: 1, Final: true, Lens: []int{len(end)}}},
	})
	a.waits()
	a.pulls()
	if again := a.posted(frame.TypeDeliver); len(again) > 0 {
		t.Errorf("a call whose end is in the log is delivered %d times more", len(again))
	}
	a.gone()
}

// A call that woke a box waits in the inbox, and the function that answers the pull is not
// the one that knew its caller.
func TestAClaimedCallActsWithTheTokensOfItsOwnPrincipal(t *testing.T) {
	a := newAsylum(t)
	box := &posts{frames: map[string][]frame.Frame{}}
	a.config.Poster = box
	a.config.Secrets = func(_ context.Context, s storage.Session) (map[string]storage.Secret, error) {
		return map[string]storage.Secret{"notes": {Value: "of " + s.Principal + " of " + s.Tenant}}, nil
	}
	want := map[storage.StreamID]string{}
	for id, principal := range map[storage.ID]string{"of-ada": "ada", "of-bob": "bob"} {
		stream := storage.NewStreamID()
		want[stream] = "of " + principal + " of t"
		_, put := a.store.PutItem(t.Context(), storage.Item{
			Box: asylumBox, ID: stream, State: storage.Waiting, Raw: []byte(a.request("{}")), NotAfter: time.Now().Add(time.Hour), Created: time.Now(),
			Address: storage.Address{Session: id, Stream: stream, Box: asylumBox, Requests: []json.RawMessage{json.RawMessage("77")}},
		})
		commontest.OK(t, errors.Join(put, a.store.Create(t.Context(), storage.Session{
			ID: id, Server: "s", Tenant: "t", Principal: principal, State: storage.Ready, Version: wire.V20251125, Expires: time.Now().Add(time.Hour),
		})))
	}
	a.pulls()
	for _, f := range box.frames["c"] {
		if d, ok := f.(frame.Deliver); ok {
			commontest.EqualIn(t, "a call acts with the token", want[d.ID], d.Secrets["notes"].Value)
			delete(want, d.ID)
		}
	}
	if len(want) > 0 {
		t.Errorf("%d calls were not delivered", len(want))
	}
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
	synctest.Test(t, func(t *testing.T) {
		a := newAsylum(t)
		seen := a.box()
		seen.State = storage.Asleep // an older look
		a.config.Store = a.before("PutItem", a.sleeps)
		d := sessions.Delivery{Address: a.address(), Client: a.session(), Server: "s", Raw: []byte(a.request("{}"))}
		if _, err := relayserver.NewBackend(a.config).Deliver(t.Context(), d, seen); err != nil {
			t.Fatal(err)
		}
		if b := a.box(); b.State != storage.Starting || a.starts != 1 {
			t.Errorf("a call waits in the inbox of a box in state %q after %d starts; want one start", b.State, a.starts)
		}
	})
}

// A request may still arrive for some time after its last post, and be executed. Only then
// is it certain what the client is told: unknown now, and not executed later.
func TestACallIsGivenUpOnceItsLastPostIsTooOldToBeExecuted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsylum(t)
		d := sessions.Delivery{Address: a.address(), Client: a.session(), Server: "s", Raw: []byte(a.request("{}"))}
		tracker, err := relayserver.NewBackend(a.config).Deliver(t.Context(), d, a.box())
		commontest.OK(t, err)
		posted := time.Now()
		commontest.OK(t, tracker.(sessions.Handover).GiveUp(t.Context()))
		a.end()
		if after := time.Since(posted); after < 2*frame.LateAfter {
			t.Errorf("the call ended %s after its last post, which may be executed for up to %s", after, 2*frame.LateAfter)
		}
	})
}

// comesUp is a fleet in which a box comes up just after the sweep has looked for the first
// time: at the records, or at the list.
type comesUp struct {
	*asylum
	listed []fleet.Status
	up     func()
}

func (f *comesUp) Tasks(context.Context) ([]fleet.Status, error) {
	was := f.listed
	f.up()
	return was, nil
}

func TestABoxThatComesUpDuringASweepIsNotLost(t *testing.T) {
	a := newAsylum(t)
	a.changes(func(b *storage.Box) {
		b.State, b.Task, b.Runner, b.Conn, b.Until, b.Changed = storage.Starting, "", "", "", time.Now().Add(time.Minute), time.Now().Add(-time.Second)
	})
	f := &comesUp{asylum: a}
	f.up = func() {
		if f.listed == nil {
			f.listed = []fleet.Status{{ID: "task", Box: string(asylumBox), State: fleet.Running, ClientToken: relayserver.ClientToken(asylumBox, asylumGen)}}
			a.changes(func(b *storage.Box) { b.State, b.Task, b.Runner, b.Conn = storage.Awake, "task", "r", "c" })
		}
	}
	looked := false
	a.config.Fleet, a.config.Store = f, intercept.New(a.store, func(ctx context.Context, call *intercept.Call, do func(context.Context) error) error {
		err := do(ctx)
		if call.Method == "Box" && !looked {
			looked = true
			f.up()
		}
		return err
	})
	a.sweep()
	if b := a.box(); b.State != storage.Awake || b.Lost != 0 {
		t.Errorf("the box came up, and is recorded in state %q with generation %d lost", b.State, b.Lost)
	}
}

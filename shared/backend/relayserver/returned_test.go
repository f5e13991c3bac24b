package relayserver_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// givesBack sends a deliver frame back as a draining runner does.
func (a *asylum) givesBack(d frametest.Frame) error {
	a.t.Helper()
	f := frametest.Frame{Type: frame.TypeReturn, Box: asylumBox, Gen: d.Gen, Ticket: d.Ticket, NotAfter: d.NotAfter, Payload: d.Payload[d.Lens[0]:]}
	reply, err := a.say(f)
	if reply.Type != "" {
		a.t.Errorf("the return was answered with %+v", reply)
	}
	return err
}

// drained makes a client call, and makes the runner give the call back and then drain for
// a time. It returns the call's end, or "" if it has none a minute later.
func drained(t *testing.T, a *asylum, draining time.Duration) string {
	t.Helper()
	call := a.calls()
	go func() {
		time.Sleep(100 * time.Millisecond)
		for _, d := range a.posted(frame.TypeDeliver) {
			commontest.Check(t, a.givesBack(d))
		}
		time.Sleep(draining)
		a.sleeps()
	}()
	events, err := call.Next(t.Context(), time.Now().Add(draining+time.Minute))
	commontest.OK(t, err)
	if len(events) == 0 {
		return ""
	}
	return string(events[0].Raw)
}

func TestACallThatADrainingBoxGivesBackWakesTheNextGeneration(t *testing.T) {
	for name, draining := range map[string]time.Duration{"at once": 0, "soon": 3 * time.Second, "longer than a function waits for a sign of life": 5 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAsylum(t)
				begun := time.Now()
				if end := drained(t, a, draining); end != "" {
					t.Fatalf("the call ended with %s after %s", end, time.Since(begun))
				}
				items, err := a.store.Items(t.Context(), asylumBox)
				if err != nil || len(items) != 1 || items[0].State != storage.Waiting {
					t.Fatalf("the inbox has %+v, %v", items, err)
				}
				if b := a.box(); b.State != storage.Starting || b.Gen <= asylumGen || a.starts != 1 {
					t.Errorf("the box is %s in generation %d after %d starts", b.State, b.Gen, a.starts)
				}
				it, err := a.store.Claim(t.Context(), asylumBox, items[0].ID, asylumGen+1)
				if err != nil || string(it.Raw) != a.request(`{"name":"transfer"}`) {
					t.Errorf("the next runner gets %s, %v", it.Raw, err)
				}
			})
		})
	}
}

// A function that waits only for a sign of life will not wake the next generation. So it
// ends a call that was given back, and tells the client to send it again.
func TestACallThatWasGivenBackWhileNobodyWaitsForItsEndWasNotExecuted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsylum(t)
		d := sessions.Delivery{Address: a.address(), Client: a.session(), Server: "s", Raw: []byte(a.request(`{"name":"transfer"}`)), Brief: true}
		tracker, err := relayserver.NewBackend(a.config).Deliver(t.Context(), d, a.box())
		commontest.OK(t, err)
		commontest.OK(t, a.givesBack(a.posted(frame.TypeDeliver)[0]))
		if status, err := tracker.Check(t.Context()); err != nil || status.Accepted {
			t.Errorf("accepted: %v, %v", status.Accepted, err)
		}
		commontest.OK(t, tracker.(sessions.Handover).GiveUp(t.Context()))
		if end := a.end(); !strings.Contains(string(end.Raw), "it was not executed, send it again") {
			t.Errorf("the call ended with %s", end.Raw)
		}
	})
}

func TestAReturnThatComesLateLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsylum(t)
		raw := a.request(`{"name":"n"}`)
		d := frametest.Frame{Gen: asylumGen, Ticket: a.config.Sealer.Seal(a.address(), asylumGen), NotAfter: time.Now().Add(time.Minute).UnixMilli(), Lens: []int{2}, Payload: []byte("{}" + raw)}
		end := wire.ResultResponse(json.RawMessage("77"), []byte("{}"))
		a.handle(frametest.Frame{
			Type: frame.TypeEvents, Box: asylumBox, Gen: asylumGen, Seq: 1, Session: "s1", Payload: end,
			Items: []frame.EventItem{{Ticket: d.Ticket, Stream: a.stream, First: 1, Final: true, Lens: []int{len(end)}}},
		})
		commontest.OK(t, a.givesBack(d))
		a.gone()
	})
}

func TestAReturnDoesNotUndoAMark(t *testing.T) {
	a := newAsylum(t)
	if may, err := a.ask(); err != nil || may.Refused != "" {
		t.Fatalf("%+v, %v", may, err)
	}
	d := frametest.Frame{Gen: asylumGen, Ticket: a.config.Sealer.Seal(a.address(), asylumGen), Lens: []int{2}, Payload: []byte("{}" + a.request(`{}`))}
	commontest.OK(t, a.givesBack(d))
	if it := a.item(); it.State != storage.Taken || it.Gen != asylumGen {
		t.Errorf("the item is %+v", it)
	}
	d.Ticket = a.config.Sealer.Seal(a.address(), asylumGen-1)
	if err := a.givesBack(d); storage.CodeOf(err) != storage.Invalid {
		t.Errorf("a return with the ticket of another generation: %v", err)
	}
}

package relayserver_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// ask sends the ask frame of a runner for which the deliver frame of the asylum's call is
// late.
func (a *asylum) ask(set ...func(*frametest.Frame)) (frametest.Frame, error) {
	a.t.Helper()
	return a.say(a.from(frame.TypeAsk, append([]func(*frametest.Frame){func(f *frametest.Frame) {
		f.ID, f.Ticket, f.NotAfter = a.stream, a.ticket(), time.Now().Add(time.Minute).UnixMilli()
	}}, set...)...))
}

// may reports whether the runner may execute a call that is late.
func (a *asylum) may(set ...func(*frametest.Frame)) bool {
	a.t.Helper()
	may, err := a.ask(set...)
	commontest.OK(a.t, err)
	commontest.EqualIn(a.t, "an ask is answered with", frame.TypeMay, may.Type)
	return may.Refused == ""
}

// A runner stands still while a call is posted to it. It continues after the client was
// told that the box does not answer, and must not execute the call then.
func TestACallThatNobodyAnswersEndsUnknownAndIsNotExecutedLater(t *testing.T) {
	inTime(t, func(t *testing.T, a *asylum) {
		call := a.calls()
		begun := time.Now()
		events, err := call.Next(t.Context(), begun.Add(time.Second))
		if err != nil || len(events) != 1 || !events[0].Final {
			t.Fatalf("%v, %v", events, err)
		}
		told := string(events[0].Raw)
		if !strings.Contains(told, `"code":-32010`) || !strings.Contains(told, "is not known") || strings.Contains(told, "again") {
			t.Errorf("the client is told %s", told)
		}
		delivers := a.posted(frame.TypeDeliver)
		if len(delivers) == 0 || time.Since(begun) > 30*time.Second {
			t.Fatalf("%d posts in %s", len(delivers), time.Since(begun))
		}
		late := delivers[len(delivers)-1]
		commontest.EqualIn(t, "the runner that goes on may execute it", false, a.may(func(f *frametest.Frame) { f.ID, f.Ticket, f.NotAfter = late.ID, late.Ticket, late.NotAfter }))
		a.stream = late.ID
		a.gone()
	})
}

func TestALateDeliverOfALivingCallMayBeExecuted(t *testing.T) {
	a := newAsylum(t)
	for range 2 { // the first answer was lost
		commontest.EqualIn(t, "it may be executed", true, a.may())
	}
	if it := a.item(); it.State != storage.Taken || it.Gen != asylumGen {
		t.Errorf("nothing says who owes the end: %+v", it)
	}
	commontest.EqualIn(t, "another round may be executed", false, a.may(func(f *frametest.Frame) { f.Round = 1 }))
	a.swaps(func(it *storage.Item) { it.Gen = 0 })
	commontest.EqualIn(t, "one that an instance is about to end may be executed", false, a.may())
}

func TestAnAskThatHasNoRightIsRefused(t *testing.T) {
	a := newAsylum(t)
	past := func(f *frametest.Frame) { f.NotAfter = time.Now().Add(-time.Second).UnixMilli() }
	commontest.EqualIn(t, "one that is not valid any more may be executed", false, a.may(past))
	for name, set := range map[string]func(*frametest.Frame){
		"another stream":     func(f *frametest.Frame) { f.ID = storage.NewStreamID() },
		"another box":        func(f *frametest.Frame) { f.Box = "t/other" },
		"another generation": func(f *frametest.Frame) { f.Gen-- },
		"no ticket":          func(f *frametest.Frame) { f.Ticket = "" },
	} {
		a.store.Reset()
		if may, err := a.ask(set); storage.CodeOf(err) != storage.Invalid || may.Type != "" || len(a.store.Counts().Calls) > 0 {
			t.Errorf("%s: %+v, %v, costs %v", name, may, err, a.store.Counts().Calls)
		}
	}
	a.fallsAsleep()
	commontest.EqualIn(t, "one of a generation that is over may be executed", false, a.may())
}

// A function that gives up takes the waiting item, so no runner can execute the request
// any more.
func TestACallThatWaitsForABoxThatDoesNotComeWasNotExecuted(t *testing.T) {
	inTime(t, func(t *testing.T, a *asylum) {
		a.waits()
		commontest.OK(t, a.tracks(a.store).(sessions.Handover).GiveUp(t.Context()))
		commontest.Contains(t, "the end", "it was not executed, send it again", string(a.end().Raw))
		commontest.EqualIn(t, "it may be executed all the same", false, a.may())
	})
}

// givesBack sends a deliver frame back as a draining runner does.
func (a *asylum) givesBack(d frametest.Frame) error {
	a.t.Helper()
	reply, err := a.say(a.from(frame.TypeReturn, func(f *frametest.Frame) {
		f.Ticket, f.NotAfter, f.Payload = d.Ticket, d.NotAfter, d.Payload[d.Lens[0]:]
	}))
	commontest.EqualIn(a.t, "the return was answered with", "", reply.Type)
	return err
}

// A function that waits only for a sign of life will not wake the next generation. So it
// ends a call that was given back, and tells the client to send it again.
func TestACallThatWasGivenBackWhileNobodyWaitsForItsEndWasNotExecuted(t *testing.T) {
	inTime(t, func(t *testing.T, a *asylum) {
		d := sessions.Delivery{Address: a.address(), Client: a.session(), Server: "s", Raw: []byte(a.request(`{"name":"transfer"}`)), Brief: true}
		tracker, err := a.backend().Deliver(t.Context(), d, a.box())
		commontest.OK(t, err)
		commontest.OK(t, a.givesBack(a.posted(frame.TypeDeliver)[0]))
		if status, err := tracker.Check(t.Context()); err != nil || status.Accepted {
			t.Errorf("accepted: %v, %v", status.Accepted, err)
		}
		commontest.OK(t, tracker.(sessions.Handover).GiveUp(t.Context()))
		commontest.Contains(t, "the end", "it was not executed, send it again", string(a.end().Raw))
	})
}

func (a *asylum) late() frametest.Frame {
	return frametest.Frame{Ticket: a.ticket(), NotAfter: time.Now().Add(time.Minute).UnixMilli(), Lens: []int{2}, Payload: []byte("{}" + a.request(`{"name":"n"}`))}
}

func TestAReturnThatComesLateLeavesNothingBehind(t *testing.T) {
	a := newAsylum(t)
	a.ends()
	commontest.OK(t, a.givesBack(a.late()))
	a.gone()
}

func TestAReturnDoesNotUndoAMark(t *testing.T) {
	a := newAsylum(t)
	commontest.EqualIn(t, "it may be executed", true, a.may())
	d := a.late()
	commontest.OK(t, a.givesBack(d))
	if it := a.item(); it.State != storage.Taken || it.Gen != asylumGen {
		t.Errorf("the item is %+v", it)
	}
	d.Ticket = a.config.Sealer.Seal(a.address(), asylumGen-1)
	commontest.EqualIn(t, "a return with the ticket of another generation is", storage.Invalid, storage.CodeOf(a.givesBack(d)))
}

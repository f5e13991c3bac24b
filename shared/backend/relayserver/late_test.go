package relayserver_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
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
	f := frametest.Frame{
		Type: frame.TypeAsk, Box: asylumBox, Gen: asylumGen, ID: a.stream, Ticket: a.config.Sealer.Seal(a.address(), asylumGen),
		NotAfter: time.Now().Add(time.Minute).UnixMilli(),
	}
	for _, s := range set {
		s(&f)
	}
	return a.say(f)
}

// A runner stands still while a call is posted to it. It continues after the client was
// told that the box does not answer, and must not execute the call then.
func TestACallThatNobodyAnswersEndsUnknownAndIsNotExecutedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsylum(t)
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
		may, err := a.ask(func(f *frametest.Frame) { f.ID, f.Ticket, f.NotAfter = late.ID, late.Ticket, late.NotAfter })
		if err != nil || may.Type != frame.TypeMay || may.Refused == "" {
			t.Errorf("the runner that goes on may execute it: %+v, %v", may, err)
		}
		if _, err := a.store.Item(t.Context(), asylumBox, late.ID); !errors.Is(err, storage.NotFound) {
			t.Errorf("its item is left behind: %v", err)
		}
	})
}

func TestALateDeliverOfALivingCallMayBeExecuted(t *testing.T) {
	a := newAsylum(t)
	for range 2 { // the first answer was lost
		if may, err := a.ask(); err != nil || may.Type != frame.TypeMay || may.Refused != "" {
			t.Errorf("%+v, %v", may, err)
		}
	}
	if it, err := a.store.Item(t.Context(), asylumBox, a.stream); err != nil || it.State != storage.Taken || it.Gen != asylumGen {
		t.Errorf("nothing says who owes the end: %+v, %v", it, err)
	}
	if may, err := a.ask(func(f *frametest.Frame) { f.Round = 1 }); err != nil || may.Refused == "" {
		t.Errorf("another round may be executed: %+v, %v", may, err)
	}
}

func TestAnAskThatHasNoRightIsRefused(t *testing.T) {
	past := func(f *frametest.Frame) { f.NotAfter = time.Now().Add(-time.Second).UnixMilli() }
	a := newAsylum(t)
	if may, err := a.ask(past); err != nil || may.Refused == "" {
		t.Errorf("one that is not valid any more: %+v, %v", may, err)
	}
	for name, set := range map[string]func(*frametest.Frame){
		"another stream":     func(f *frametest.Frame) { f.ID = storage.NewStreamID() },
		"another box":        func(f *frametest.Frame) { f.Box = "t/other" },
		"another generation": func(f *frametest.Frame) { f.Gen-- },
		"no ticket":          func(f *frametest.Frame) { f.Ticket = "" },
	} {
		t.Run(name, func(t *testing.T) {
			before := a.store.Counts().Reads + a.store.Counts().Writes
			if may, err := a.ask(set); storage.CodeOf(err) != storage.Invalid || may.Type != "" {
				t.Errorf("%s: %+v, %v", name, may, err)
			}
			if n := a.store.Counts().Reads + a.store.Counts().Writes - before; n != 0 {
				t.Errorf("%s costs %d calls of the store", name, n)
			}
		})
	}
	a.changes(func(b *storage.Box) { b.State = storage.Asleep })
	if may, err := a.ask(); err != nil || may.Refused == "" {
		t.Errorf("one of a generation that is over: %+v, %v", may, err)
	}
}

// A function that gives up takes the waiting item, so no runner can execute the request
// any more.
func TestACallThatWaitsForABoxThatDoesNotComeWasNotExecuted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsylum(t)
		a.waits()
		commontest.OK(t, a.tracks(a.store).(sessions.Handover).GiveUp(t.Context()))
		page, err := a.store.Read(t.Context(), "s1", a.stream, 0, 10)
		if err != nil || len(page.Events) != 1 || !strings.Contains(string(page.Events[0].Raw), "it was not executed, send it again") {
			t.Errorf("%v, %v", page.Events, err)
		}
		if may, err := a.ask(); err != nil || may.Refused == "" {
			t.Errorf("it may be executed all the same: %+v, %v", may, err)
		}
	})
}

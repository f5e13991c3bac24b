package relayserver_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func TestTheItemIsThereBeforeItsQuestionsAre(t *testing.T) {
	a := newAsylum(t)
	faulty := storagetest.NewFaulty(a.store, 1, storagetest.Faults{})
	faulty.Set("Append", storagetest.Faults{Lost: 1})
	a.config.Store = faulty
	suspends := a.suspension(1, 1, wire.MethodElicit, wire.MethodElicit)
	if _, err := a.say(suspends); storage.CodeOf(err) != storage.Unavailable {
		t.Fatalf("the frame was answered: %v", err)
	}
	a.config.Store = a.store
	it := a.item()
	if it.State != storage.Suspended || it.Round != 1 || it.Base != 2 || it.Gen != asylumGen || len(it.Questions) != 2 ||
		string(it.Raw) != a.request(`{"name":"n","requestState":"s1"}`) || !bytes.Equal(it.Address.Requests[0], []byte("77")) {
		t.Errorf("the item is %+v", it)
	}
	commontest.EqualIn(t, "it is open for", 6*time.Hour, it.NotAfter.Sub(it.Created))
	for range 2 { // the runner sends the batch again, and once more if the ack is lost
		if ack := a.handle(suspends); ack.Type != frame.TypeAck || len(ack.Closed) > 0 {
			t.Errorf("sent again it is answered with %+v", ack)
		}
	}
	if diff := cmp.Diff(it, a.item()); diff != "" {
		t.Errorf("the item has changed: %s", diff)
	}
	page, err := a.store.Read(t.Context(), "s1", a.stream, 0, 10)
	if err != nil || len(page.Events) != 2 || page.Final() {
		t.Errorf("the log has %d events, final %v: %v", len(page.Events), page.Final(), err)
	}
}

// The questions of a round may come in several batches, and a client may answer the
// first before the last is stored.
func TestAQuestionMayBeAnsweredBeforeItsCallIsSuspended(t *testing.T) {
	a := newAsylum(t)
	last := a.suspension(1, 1, wire.MethodElicit, wire.MethodElicit)
	first := last
	sealed, lens := last.Items[0].Ticket, last.Items[0].Lens
	first.Seq, first.Tickets, first.Payload = 1, []string{sealed}, last.Payload[:lens[0]]
	first.Items = []frame.EventItem{{Ticket: sealed, Stream: a.stream, First: 1, Lens: lens[:1]}}
	last.Seq, last.Payload = 2, last.Payload[lens[0]:]
	last.Items[0].First, last.Items[0].Lens, last.Items[0].Marked = 2, lens[1:], true
	a.handle(first)
	a.answers(1, 0, `"result":{"action":"accept"}`)
	a.handle(last)
	a.answers(1, 1, `"result":{"action":"accept"}`)
	if it := a.item(); it.State != storage.Waiting || it.Round != 1 {
		t.Errorf("all is answered, and the item is %+v", it)
	}
}

func TestSuspensionCostsAWriteMoreThanItsEvents(t *testing.T) {
	for name, marked := range map[string]bool{"no mark": false, "over its mark": true} {
		t.Run(name, func(t *testing.T) {
			a := newAsylum(t)
			f := a.suspension(1, 1, wire.MethodElicit)
			if marked {
				a.handle(frametest.Frame{Type: frame.TypeTaken, Box: asylumBox, Gen: asylumGen, Tickets: []string{f.Items[0].Ticket}})
				f.Items[0].Marked = true
			}
			a.store.Reset()
			a.handle(f)
			if n := a.store.Counts(); n.Writes != 2 || n.Reads != 0 {
				t.Errorf("%v", n.Calls)
			}
		})
	}
}

func TestTheLastAnswerWakesTheBoxAndTheOneBeforeDoesNot(t *testing.T) {
	a := newAsylum(t)
	a.suspended(wire.MethodElicit, wire.MethodElicit)
	a.sleeps()
	a.answers(1, 1, `"error":{"code":-1,"message":"closed"}`)
	a.answers(1, 1, yes) // the first answer counts
	if a.starts != 0 || a.item().State != storage.Suspended {
		t.Fatal("it did not wait for all answers")
	}
	a.answers(1, 0, `"result":{"action":"accept","content":{"n":9007199254740993}}`)
	it := a.item()
	want := a.request(`{"name":"n","requestState":"s1","inputResponses":{"k0":{"action":"accept","content":{"n":9007199254740993}},"k1":{"action":"cancel"}}}`)
	if it.State != storage.Waiting || it.Round != 1 || it.Base != 2 || string(it.Raw) != want {
		t.Errorf("the item is %s in round %d behind %d: %s", it.State, it.Round, it.Base, it.Raw)
	}
	if a.starts != 1 {
		t.Errorf("%d boxes were started", a.starts)
	}
	a.answers(1, 0, yes) // a repeat
	if a.starts != 1 || a.item().State != storage.Waiting {
		t.Error("a repeated answer changes something")
	}
}

func TestTheNextRoundIsDeliveredBehindTheQuestions(t *testing.T) {
	a := newAsylum(t)
	a.suspended(wire.MethodElicit, wire.MethodElicit)
	a.answers(1, 0, yes)
	a.answers(1, 1, yes)
	if len(a.posted(frame.TypeNudge)) != 1 || a.starts != 0 {
		t.Errorf("%d nudges, %d starts for a box that is awake", len(a.posted(frame.TypeNudge)), a.starts)
	}
	pulled := a.handle(frametest.Frame{Type: frame.TypePull, Box: asylumBox, Gen: asylumGen, Runner: "r", N: 1})
	commontest.Same(t, map[storage.StreamID]int{a.stream: 1}, pulled.Rounds)
	d := a.posted(frame.TypeDeliver)
	if len(d) != 1 || d[0].Round != 1 || d[0].Base != 2 || !d[0].Inbox || !strings.Contains(string(d[0].Payload), `"inputResponses"`) {
		t.Fatalf("delivered: %+v", d)
	}
	f := a.suspension(2, 3, wire.MethodElicit)
	f.Items[0].Marked = true
	a.handle(f)
	it := a.item()
	if it.State != storage.Suspended || it.Round != 2 || it.Base != 3 {
		t.Errorf("the item is %s in round %d behind %d", it.State, it.Round, it.Base)
	}
	// A copy of the first round's batch comes late.
	if ack := a.handle(a.suspension(1, 1, wire.MethodElicit, wire.MethodElicit)); len(ack.Closed) > 0 {
		t.Errorf("%+v", ack)
	}
	if diff := cmp.Diff(it, a.item()); diff != "" {
		t.Errorf("a late copy changed the item: %s", diff)
	}
}

func TestAnswersThatComeAtOnceMakeOneRound(t *testing.T) {
	a := newAsylum(t)
	a.suspended(wire.MethodElicit, wire.MethodElicit, wire.MethodElicit)
	a.sleeps()
	var all sync.WaitGroup
	for n := range 12 {
		all.Go(func() {
			commontest.Check(t, a.accept(`{"jsonrpc":"2.0","id":"`+storage.QuestionID(a.stream, 1, n%3)+`",`+yes+`}`))
		})
	}
	all.Wait()
	if it := a.item(); it.State != storage.Waiting || it.Round != 1 || a.starts != 1 {
		t.Errorf("the item is %s in round %d, and %d boxes were started", it.State, it.Round, a.starts)
	}
}

func TestAnswerThatTheServerCannotBeToldEndsTheCall(t *testing.T) {
	a := newAsylum(t)
	a.suspended(wire.MethodCreateMessage)
	a.sleeps()
	a.answers(1, 0, `"error":{"code":-1,"message":"no model"}`)
	if m := a.end(); string(m.ID) != "77" || !strings.Contains(string(m.Error), "no model") || !strings.Contains(string(m.Error), "-32603") {
		t.Errorf("it ended with %s", m.Raw)
	}
	a.gone()
	if a.starts != 0 {
		t.Error("a box was started for it")
	}
}

func TestForeignAnswersChangeNothing(t *testing.T) {
	a := newAsylum(t)
	before := a.suspended(wire.MethodElicit)
	other := storage.NewStreamID()
	for _, id := range []string{
		storage.QuestionID(a.stream, 2, 0), storage.QuestionID(a.stream, 0, 0), storage.QuestionID(a.stream, 1, 7), storage.QuestionID(other, 1, 0),
	} {
		commontest.CheckIn(t, id, a.accept(`{"jsonrpc":"2.0","id":"`+id+`",`+yes+`}`))
	}
	// Another session of the tenant has learned the question's id.
	commontest.OK(t, a.store.Create(t.Context(), storage.Session{
		ID: "s2", Server: "s", Tenant: "t", Principal: "p", Transport: storage.HTTP, State: storage.Ready, Expires: time.Now().Add(time.Hour),
	}))
	m, _ := wire.Parse([]byte(`{"jsonrpc":"2.0","id":"` + storage.QuestionID(a.stream, 1, 0) + `",` + yes + `}`))
	if _, err := a.host.Accept(t.Context(), a.caller, "s2", []wire.Message{m}, false); err != nil {
		t.Error(err)
	}
	commontest.Same(t, before, a.item())
}

func TestCancelEndsASuspendedCall(t *testing.T) {
	a := newAsylum(t)
	a.suspended(wire.MethodElicit)
	a.sleeps()
	const cancel = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`
	if err := errors.Join(a.accept(cancel+`"77"}}`), a.accept(cancel+`78}}`)); err != nil || a.item().State != storage.Suspended {
		t.Fatalf("the cancel of another request counts: %v", err)
	}
	commontest.OK(t, a.accept(cancel+`77}}`))
	if m := a.end(); string(wire.Lookup(m.Error, "code")) != "-32800" || string(m.ID) != "77" {
		t.Errorf("it ended with %s", m.Raw)
	}
	a.gone()
	a.answers(1, 0, yes)
	if a.gone(); a.starts != 0 {
		t.Error("an answer brings a cancelled call back")
	}
}

func TestCancelLooksForSuspendedCallsOnlyWhereThereMayBeSome(t *testing.T) {
	a := newAsylum(t)
	s := a.session()
	s.Init = json.RawMessage(`{"capabilities":{}}`)
	commontest.OK(t, a.store.Save(t.Context(), s))
	a.store.Reset()
	commontest.OK(t, a.accept(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":77}}`))
	if n := a.store.Counts(); n.Calls["Items"] != 0 {
		t.Errorf("%v", n.Calls)
	}
}

func TestDeleteEndsTheSuspendedCallsOfItsSession(t *testing.T) {
	a := newAsylum(t)
	a.suspended(wire.MethodElicit)
	commontest.OK(t, a.host.End(t.Context(), a.caller, "s1"))
	if m := a.end(); !strings.Contains(string(m.Error), "the session has ended") {
		t.Errorf("it ended with %s", m.Raw)
	}
	a.gone()
}

func TestSuspendedCallEndsWhenNobodyAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsylum(t)
		a.suspended(wire.MethodElicit, wire.MethodElicit)
		a.answers(1, 0, yes)
		time.Sleep(6*time.Hour - time.Second)
		a.sweep()
		if a.item().State != storage.Suspended {
			t.Fatal("it ended too early")
		}
		time.Sleep(2 * time.Second)
		a.sweep()
		m := a.end()
		phase, _ := wire.String(wire.Lookup(m.Error, "data", "phase"))
		if phase != "tool_call" || !strings.Contains(string(m.Error), "nobody answered within 6h0m0s") {
			t.Errorf("it ended with %s", m.Raw)
		}
		a.gone()
		a.answers(1, 1, yes)
		a.gone()
	})
}

func TestSweepResumesWhatAFunctionThatDiedHadTheLastAnswerOf(t *testing.T) {
	a := newAsylum(t)
	a.suspended(wire.MethodElicit)
	a.sleeps()
	id := storage.QuestionID(a.stream, 1, 0)
	if _, err := a.store.PutAnswer(t.Context(), storage.Answer{
		Session: "s1", Question: id, Raw: []byte(`{"jsonrpc":"2.0","id":"` + id + `",` + yes + `}`), Expires: time.Now().Add(time.Hour),
	}); err != nil {
		t.Fatal(err)
	}
	a.sweep()
	if it := a.item(); it.State != storage.Waiting || a.starts != 1 {
		t.Errorf("the item is %s, and %d boxes were started", it.State, a.starts)
	}
}

func TestSweepEndsWhatWasSuspendedByABoxThatDiedBeforeItAsked(t *testing.T) {
	a := newAsylum(t)
	it := a.suspended(wire.MethodElicit)
	a.changes(func(b *storage.Box) {
		b.State, b.Lost, b.Runner, b.Conn = storage.Asleep, b.Gen, "", ""
		b.Failure = storage.Failure{Phase: "runtime", Detail: "the box was killed", At: time.Now()}
	})
	a.sweep()
	if diff := cmp.Diff(it, a.item()); diff != "" {
		t.Fatalf("a call that waits for its client has ended with its box: %s", diff)
	}
	never := it
	never.Base = 5 // as if the questions were not stored
	if swapped, err := a.store.SwapItem(t.Context(), it, never); err != nil || !swapped {
		t.Fatal(err)
	}
	a.sweep()
	if m := a.end(); !strings.Contains(string(m.Error), "the box was killed") {
		t.Errorf("it ended with %s", m.Raw)
	}
	a.gone()
}

func TestSweepTakesAwayWhatIsSuspendedAndHasEnded(t *testing.T) {
	a := newAsylum(t)
	it := a.suspended(wire.MethodElicit)
	commontest.OK(t, a.store.Append(t.Context(), storage.Batch{
		Session: "s1", Stream: a.stream, First: it.Base + 1, Gen: asylumGen, Seq: 8, Final: true, Events: [][]byte{[]byte(`{"jsonrpc":"2.0","id":77,"result":{}}`)},
	}))
	a.sweep()
	a.gone()
	if m := a.end(); m.Result == nil {
		t.Errorf("the end is %s", m.Raw)
	}
}

func TestSweepEndsSuspendedCallsOfSessionsThatHaveEnded(t *testing.T) {
	a := newAsylum(t)
	a.suspended(wire.MethodElicit)
	s := a.session()
	s.State = storage.Ended
	commontest.OK(t, a.store.Save(t.Context(), s))
	a.sweep()
	a.gone()
}

func TestRoundThatWasClaimedTooLateWaitsAgain(t *testing.T) {
	a := newAsylum(t)
	a.suspended(wire.MethodElicit)
	a.answers(1, 0, yes)
	if _, err := a.store.Claim(t.Context(), asylumBox, a.stream, asylumGen); err != nil {
		t.Fatal(err)
	}
	a.sleeps() // the answer to its pull came too late, so it executed nothing
	a.sweep()
	if it := a.item(); it.State != storage.Waiting || it.Round != 1 || a.starts != 1 {
		t.Errorf("the item is %s in round %d, and %d boxes were started", it.State, it.Round, a.starts)
	}
}

func TestPollTakesASuspendedCallForAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsylum(t)
		a.suspended(wire.MethodElicit)
		a.sleeps()
		call, err := a.host.Resume(t.Context(), a.caller, "s1", storage.EventID{Stream: a.stream, Index: 1}.String())
		commontest.OK(t, err)
		a.store.Reset()
		events, err := call.Next(t.Context(), time.Now().Add(25*time.Second))
		if err != nil || len(events) > 0 || call.Done() {
			t.Errorf("%d events, done %v: %v", len(events), call.Done(), err)
		}
		if n := a.store.Counts(); n.Calls["Box"] > 0 || n.Writes > 0 || a.starts > 0 {
			t.Errorf("the box is looked after: %v, %d starts", n.Calls, a.starts)
		}
	})
}

// A function posts a call. The answer comes at once and suspends the call, and the box
// falls asleep before the function looks again. The function must not deliver the call a
// second time.
func TestCallThatWasSuspendedBehindTheBackOfItsFunctionIsNotDeliveredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsylum(t)
		config := a.config
		config.Store = a.before("Box", func() { // after the call has looked for its item
			a.suspended(wire.MethodElicit)
			a.sleeps()
		})
		a.host = sessions.New(config.Store, relayserver.NewBackend(config), sessions.Limits{})
		call := a.calls()
		a.stream = a.posted(frame.TypeDeliver)[0].ID
		for range 3 { // the call reads the log from the question on
			if _, err := call.Next(t.Context(), time.Now().Add(10*time.Second)); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(a.posted(frame.TypeDeliver)); n != 1 || a.starts != 0 || a.item().State != storage.Suspended {
			t.Errorf("delivered %d times, %d starts, the item is %s", n, a.starts, a.item().State)
		}
	})
}

func TestSuspensionThatIsNotItsOwnIsRefused(t *testing.T) {
	for what, change := range map[string]func(a *asylum, it *frame.EventItem){
		"a question of another stream": func(_ *asylum, it *frame.EventItem) {
			it.Asks.Questions[0].ID = storage.QuestionID(storage.NewStreamID(), 1, 0)
		},
		"a question of another round": func(a *asylum, it *frame.EventItem) {
			it.Asks.Questions[0].ID = storage.QuestionID(a.stream, 2, 0)
		},
		"a question of a process":  func(_ *asylum, it *frame.EventItem) { it.Asks.Questions[0].ID = "q-1" },
		"no questions":             func(_ *asylum, it *frame.EventItem) { it.Asks.Questions = nil },
		"round 0":                  func(_ *asylum, it *frame.EventItem) { it.Asks.Round = 0 },
		"a round too many":         func(_ *asylum, it *frame.EventItem) { it.Asks.Round = storage.MaxRounds + 1 },
		"no time":                  func(_ *asylum, it *frame.EventItem) { it.Asks.Within = 0 },
		"an end":                   func(_ *asylum, it *frame.EventItem) { it.Final = true },
		"the standalone stream":    func(_ *asylum, it *frame.EventItem) { it.Stream = storage.Standalone },
		"a length below zero":      func(_ *asylum, it *frame.EventItem) { it.Asks.Len = -1 },
		"a length that is too far": func(_ *asylum, it *frame.EventItem) { it.Asks.Len = 1 << 60 },
		"no request":               func(_ *asylum, it *frame.EventItem) { it.Lens[0] += it.Asks.Len; it.Asks.Len = 0 },
	} {
		t.Run(what, func(t *testing.T) {
			a := newAsylum(t)
			f := a.suspension(1, 1, wire.MethodElicit)
			change(a, &f.Items[0])
			a.store.Reset()
			ack := a.handle(f)
			if n := a.store.Counts(); n.Writes > 0 {
				t.Errorf("wrote %v", n.Calls)
			}
			if f.Items[0].Stream != storage.Standalone && !slices.Contains(ack.Closed, a.stream) {
				t.Errorf("answered with %+v", ack)
			}
		})
	}
	t.Run("a round that has not been begun", func(t *testing.T) {
		a := newAsylum(t)
		a.suspended(wire.MethodElicit)
		f := a.suspension(3, 3, wire.MethodElicit)
		if ack := a.handle(f); !slices.Contains(ack.Closed, a.stream) || a.item().Round != 1 {
			t.Errorf("answered with %+v", ack)
		}
	})
	t.Run("a later round of what has ended", func(t *testing.T) {
		a := newAsylum(t)
		if ack := a.handle(a.suspension(2, 3, wire.MethodElicit)); !slices.Contains(ack.Closed, a.stream) {
			t.Errorf("answered with %+v", ack)
		}
		a.gone()
	})
}

func TestAStreamThatHasEndedIsNotSuspended(t *testing.T) {
	a := newAsylum(t)
	commontest.OK(t, a.store.Append(t.Context(), storage.Batch{
		Session: "s1", Stream: a.stream, First: 1, Final: true, Events: [][]byte{[]byte(`{"jsonrpc":"2.0","id":77,"error":{"code":-32603,"message":"lost"}}`)},
	}))
	if ack := a.handle(a.suspension(1, 1, wire.MethodElicit)); !slices.Contains(ack.Closed, a.stream) {
		t.Errorf("answered with %+v", ack)
	}
	a.sweep()
	a.gone()
}

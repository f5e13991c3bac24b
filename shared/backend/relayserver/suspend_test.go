package relayserver_test

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/intercept"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func TestTheItemIsThereBeforeItsQuestionsAre(t *testing.T) {
	a := newAsylum(t)
	faulty := storagetest.NewFaulty(a.store, 1, storagetest.Faults{})
	faulty.Set("Append", storagetest.Faults{Lost: 1})
	a.config.Store = faulty
	a.store.Reset()
	suspends := a.suspension(1, 1, wire.MethodElicit, wire.MethodElicit)
	if _, err := a.say(suspends); storage.CodeOf(err) != storage.Unavailable {
		t.Fatalf("the frame was answered: %v", err)
	}
	if n := a.store.Counts(); n.Writes != 1 || n.Reads != 0 {
		t.Errorf("to suspend costs more than a write: %v", n.Calls)
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
	commontest.SameIn(t, "the item", it, a.item())
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
	a.answers(1, 0, yes)
	a.handle(last)
	a.answers(1, 1, yes)
	if it := a.item(); it.State != storage.Waiting || it.Round != 1 {
		t.Errorf("all is answered, and the item is %+v", it)
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
	for range 2 {
		commontest.EqualIn(t, "boxes that were started", 1, a.starts)
		commontest.EqualIn(t, "the item is", storage.Waiting, a.item().State)
		a.answers(1, 0, yes) // a repeat
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

const cancel = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`

func (a *asylum) swaps(change func(*storage.Item)) {
	a.t.Helper()
	it := a.item()
	was := it
	change(&it)
	if swapped, err := a.store.SwapItem(a.t.Context(), was, it); err != nil || !swapped {
		a.t.Fatal(swapped, err)
	}
}

// dies has the box be lost.
func (a *asylum) dies() {
	a.t.Helper()
	a.changes(func(b *storage.Box) {
		b.State, b.Lost, b.Runner, b.Conn = storage.Asleep, b.Gen, "", ""
		b.Failure = storage.Failure{Phase: "runtime", Detail: "the box was killed", At: time.Now()}
	})
}

// A suspended call ends at once, without a box, and an answer that comes later changes nothing.
func TestASuspendedCallEnds(t *testing.T) {
	for what, tt := range map[string]struct {
		asks string // the method of its question
		ends func(a *asylum)
		end  []string // parts of it
	}{
		"nobody answers": {wire.MethodElicit, func(a *asylum) {
			time.Sleep(6*time.Hour + time.Second)
			a.sweep()
		}, []string{"-32010", `"phase":"tool_call"`, "nobody answered within 6h0m0s"}},
		"its client cancels": {wire.MethodElicit, func(a *asylum) {
			commontest.OK(a.t, a.accept(cancel+`77}}`))
		}, []string{"-32800"}},
		"the server cannot be told the answer": {wire.MethodCreateMessage, func(a *asylum) {
			a.answers(1, 0, `"error":{"code":-1,"message":"no model"}`)
		}, []string{"-32603", "no model"}},
		"DELETE": {wire.MethodElicit, func(a *asylum) {
			commontest.OK(a.t, a.host.End(a.t.Context(), a.caller, "s1"))
		}, []string{"-32010", "the session has ended"}},
		"a function that ended the session died": {wire.MethodElicit, func(a *asylum) {
			s := a.session()
			s.State = storage.Ended
			commontest.OK(a.t, a.store.Save(a.t.Context(), s))
			a.sweep()
		}, []string{"-32010", "the session has ended"}},
		"its box died before it asked": {wire.MethodElicit, func(a *asylum) {
			a.dies()
			a.swaps(func(it *storage.Item) { it.Base = 5 }) // as if the questions were not stored
			a.sweep()
		}, []string{"the box was killed"}},
		"its log has its end": {wire.MethodElicit, func(a *asylum) {
			commontest.OK(a.t, a.store.Append(a.t.Context(), storage.Batch{
				Session: "s1", Stream: a.stream, First: 2, Gen: asylumGen, Seq: 8, Final: true, Events: [][]byte{[]byte(`{"jsonrpc":"2.0","id":77,"result":{}}`)},
			}))
			a.sweep()
		}, []string{`"result"`}},
	} {
		t.Run(what, timed(func(t *testing.T, a *asylum) {
			a.suspended(tt.asks)
			a.sleeps()
			tt.ends(a)
			end := a.end()
			commontest.EqualIn(t, "the id of the end", "77", string(end.ID))
			for _, part := range tt.end {
				commontest.Contains(t, "the end", part, string(end.Raw))
			}
			a.gone()
			_ = a.accept(`{"jsonrpc":"2.0","id":"` + storage.QuestionID(a.stream, 1, 0) + `",` + yes + `}`) // the session may have ended
			if a.gone(); a.starts != 0 {
				t.Error("an answer brings the call back")
			}
		}))
	}
}

// A part of the call was executed before it waited, so it must not be sent again.
func TestALaterRoundThatNoBoxTakesEndsUnknown(t *testing.T) {
	inTime(t, func(t *testing.T, a *asylum) {
		a.suspended(wire.MethodElicit)
		a.sleeps()
		a.answers(1, 0, yes)
		time.Sleep(time.Hour)
		_, err := a.tracks(a.store).Check(t.Context())
		commontest.OK(t, err)
		end := string(a.end().Raw)
		commontest.Contains(t, "the end", "-32010", end)
		if strings.Contains(end, "again") || strings.Contains(end, sessions.DataUnsent) {
			t.Errorf("it is to be sent again: %s", end)
		}
	})
}

func TestASuspendedCallWaitsWhateverElseComes(t *testing.T) {
	for what, does := range map[string]func(a *asylum) error{
		"another request is cancelled": func(a *asylum) error { return a.accept(cancel + `"77"}}`) },
		"an answer to what it does not ask": func(a *asylum) error {
			return a.accept(`{"jsonrpc":"2.0","id":"` + storage.QuestionID(a.stream, 2, 0) + `",` + yes + `}`)
		},
		"another session of the tenant has learned the question's id": func(a *asylum) error {
			commontest.OK(a.t, a.store.Create(a.t.Context(), storage.Session{
				ID: "s2", Server: "s", Tenant: "t", Principal: "p", Transport: storage.HTTP, State: storage.Ready, Expires: time.Now().Add(time.Hour),
			}))
			m, _ := wire.Parse([]byte(`{"jsonrpc":"2.0","id":"` + storage.QuestionID(a.stream, 1, 0) + `",` + yes + `}`))
			_, err := a.host.Accept(a.t.Context(), a.caller, "s2", []wire.Message{m}, false)
			return err
		},
		"its time is not over": func(a *asylum) error {
			time.Sleep(6*time.Hour - time.Second)
			a.sweep()
			return nil
		},
		"its box dies after it has asked": func(a *asylum) error {
			a.dies()
			a.sweep()
			return nil
		},
	} {
		t.Run(what, timed(func(t *testing.T, a *asylum) {
			before := a.suspended(wire.MethodElicit)
			commontest.Check(t, does(a))
			commontest.Same(t, before, a.item())
		}))
	}
}

// A function died that had stored the last answer.
func TestTheSweepMakesARoundWaitForABox(t *testing.T) {
	a := newAsylum(t)
	a.suspended(wire.MethodElicit)
	a.sleeps()
	id := storage.QuestionID(a.stream, 1, 0)
	_, err := a.store.PutAnswer(t.Context(), storage.Answer{
		Session: "s1", Question: id, Raw: []byte(`{"jsonrpc":"2.0","id":"` + id + `",` + yes + `}`), Expires: time.Now().Add(time.Hour),
	})
	commontest.OK(t, err)
	a.sweep()
	if it := a.item(); it.State != storage.Waiting || it.Round != 1 || a.starts != 1 {
		t.Errorf("the item is %s in round %d, and %d boxes were started", it.State, it.Round, a.starts)
	}
}

// A function posts a call. The answer comes at once and suspends the call, and the box
// falls asleep before the function looks again. The function must not deliver the call a
// second time.
func TestCallThatWasSuspendedBehindTheBackOfItsFunctionIsNotDeliveredAgain(t *testing.T) {
	inTime(t, func(t *testing.T, a *asylum) {
		a.config.Store = a.before("Box", func() { // after the call has looked for its item
			a.suspended(wire.MethodElicit)
			a.sleeps()
		})
		a.rehost()
		call := a.calls()
		a.stream = a.posted(frame.TypeDeliver)[0].ID
		for range 3 { // the call reads the log from the question on
			_, err := call.Next(t.Context(), time.Now().Add(10*time.Second))
			commontest.OK(t, err)
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
		"no questions":             func(_ *asylum, it *frame.EventItem) { it.Asks.Questions = nil },
		"a round too many":         func(_ *asylum, it *frame.EventItem) { it.Asks.Round = storage.MaxRounds + 1 },
		"an end":                   func(_ *asylum, it *frame.EventItem) { it.Final = true },
		"the standalone stream":    func(_ *asylum, it *frame.EventItem) { it.Stream = storage.Standalone },
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
}

// The store holds the call in round 0, and the runner begins round 3. No write can succeed then.
func TestARoundThatIsNotDueIsRefusedAtOnce(t *testing.T) {
	a := newAsylum(t)
	a.waits()
	_, err := a.store.Claim(t.Context(), asylumBox, a.stream, asylumGen)
	commontest.OK(t, err)
	tries := 0
	a.config.Store = intercept.New(a.store, func(ctx context.Context, call *intercept.Call, do func(context.Context) error) error {
		if tries++; tries > 20 {
			return errDown
		}
		return do(ctx)
	})
	if ack := a.handle(a.suspension(3, 1, wire.MethodElicit)); !slices.Contains(ack.Closed, a.stream) {
		t.Errorf("answered with %+v", ack)
	}
}

package sessions_test

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

type asking struct {
	nobody
	got *[]string
}

func (a asking) Answer(_ context.Context, answer storage.Answer, _ storage.Box) error {
	*a.got = append(*a.got, string(answer.Raw))
	return nil
}

func TestTheFirstAnswerToAQuestionIsTheOneTheBoxHears(t *testing.T) {
	_, store, id := listening(t)
	var got []string
	h := sessions.New(store, asking{got: &got}, sessions.Limits{})
	awake(t, store)
	for _, raw := range []string{`{"jsonrpc":"2.0","id":"q-1","result":{"a":1}}`, `{"jsonrpc":"2.0","id":"q-1","result":{"a":2}}`} {
		answer(t, h, id, raw)
	}
	if len(got) != 2 || got[0] != got[1] || got[0] != `{"jsonrpc":"2.0","id":"q-1","result":{"a":1}}` {
		t.Errorf("the box heard %q; want the first answer, again when it was repeated", got)
	}
}

func TestAnAnswerWhosePutWasNotConfirmedReachesTheBoxWhenItIsSentAgain(t *testing.T) {
	_, memory, id := listening(t)
	faulty := storagetest.NewFaulty(memory, 1, storagetest.Faults{})
	var got []string
	h := sessions.New(faulty, asking{got: &got}, sessions.Limits{})
	awake(t, memory)
	raw := `{"jsonrpc":"2.0","id":"q-1","result":{}}`
	faulty.Set("PutAnswer", storagetest.Faults{Unanswered: 1})
	if _, err := accept(t, h, id, raw); storage.CodeOf(err) != storage.Unavailable {
		t.Fatalf("got %v, want unavailable", err)
	}
	faulty.Set("PutAnswer", storagetest.Faults{})
	answer(t, h, id, raw)
	if len(got) != 1 || got[0] != raw {
		t.Errorf("the box heard %q", got)
	}
}

func TestAnAnswerWakesABoxThatSleepsWithTheMemoryOfItsProcess(t *testing.T) {
	_, store, id := listening(t)
	b, c := newTook(), someone
	h := sessions.New(store, b, sessions.Limits{})
	c.Server.Remembers = true
	for _, raw := range []string{`{"jsonrpc":"2.0","id":"q-1","result":{"a":1}}`, `{"jsonrpc":"2.0","id":"q-1","result":{"a":2}}`} {
		_, err := h.Accept(t.Context(), c, id, []wire.Message{parsed(t, raw)}, false)
		commontest.OK(t, err)
	}
	for _, d := range *b.deliveries {
		if !d.Wakes || !strings.Contains(string(d.Raw), `"a":1`) {
			t.Errorf("%s, and it wakes the box: %t; want the first answer", d.Raw, d.Wakes)
		}
	}
	commontest.EqualIn(t, "deliveries, also of the repeated answer", 2, len(*b.deliveries))
}

func TestAnAnswerToWhatWasNeverAskedIsNotKept(t *testing.T) {
	_, store, id := listening(t)
	counting := storagetest.NewCounting(store)
	h := sessions.New(counting, asking{got: new([]string)}, sessions.Limits{})
	answer(t, h, id, `{"jsonrpc":"2.0","id":"q-1","result":{}}`) // of a box that sleeps
	awake(t, store)
	for _, other := range []string{
		`7`, `"x"`, `"mine-1"`, `"q-` + strings.Repeat("x", 63) + `"`, `"` + storage.QuestionID(storage.NewStreamID(), 1, 0) + `"`,
	} {
		answer(t, h, id, `{"jsonrpc":"2.0","id":`+other+`,"result":{}}`)
	}
	commontest.EqualIn(t, "writes", 0, counting.Counts().Writes)
}

func TestAnswersOfASessionAreBoundedForADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, store, id := listening(t)
		awake(t, store)
		h := sessions.New(store, asking{got: new([]string)}, sessions.Limits{})
		large := func(i int) error {
			_, err := accept(t, h, id, fmt.Sprintf(`{"jsonrpc":"2.0","id":"q-%d","result":{"x":"%s"}}`, i, strings.Repeat("x", 4<<20-100)))
			return err
		}
		for i := range 16 {
			if err := large(i); err != nil {
				t.Fatal(i, err)
			}
		}
		commontest.EqualIn(t, "over 64 MiB", storage.TooLarge, storage.CodeOf(large(17)))
		change(t, store, id, func(s *storage.Session) { s.Expires = time.Now().Add(72 * time.Hour) })
		time.Sleep(storage.EventAge + time.Second)
		commontest.CheckIn(t, "a day later", large(18))
	})
}

func answer(t *testing.T, h *sessions.Manager, id storage.ID, raw string) {
	t.Helper()
	if call, err := accept(t, h, id, raw); err != nil || call != nil {
		t.Fatalf("call %v, %v; want nothing to wait for", call, err)
	}
}

func TestAnAnswerToASuspendedCallIsTakenWhileTheBoxSleeps(t *testing.T) {
	_, store, id := listening(t)
	counting := storagetest.NewCounting(store)
	var got []string
	h := sessions.New(counting, asking{got: &got}, sessions.Limits{})
	stream := storage.NewStreamID()
	question := storage.QuestionID(stream, 1, 1)
	item := storage.Item{Box: storage.BoxFor("t", "s"), ID: stream, Address: storage.Address{Session: id}}.
		Suspend([]storage.Question{{ID: question}}, nil, 1, time.Now(), time.Hour)
	_, err := store.PutItem(t.Context(), item)
	commontest.OK(t, err)
	raw := `{"jsonrpc":"2.0","id":"` + question + `","result":{}}`
	answer(t, h, id, raw)
	if n := counting.Counts(); n.Calls["PutAnswer"] != 1 || len(got) != 1 || got[0] != raw {
		t.Errorf("calls %v, the backend heard %q", n.Calls, got)
	}
}

// refusing fails the first call of a tool: as a gate, or as a backend that has the message by then.
type refusing struct {
	took
	backend, gate *error
}

func first(err *error, tools []string) error {
	if tools == nil {
		return nil
	}
	defer func() { *err = nil }()
	return *err
}

func (r refusing) Deliver(ctx context.Context, d sessions.Delivery, box storage.Box) (sessions.Tracker, error) {
	t, err := r.took.Deliver(ctx, d, box)
	return t, cmp.Or(err, first(r.backend, d.Tools))
}

func (r refusing) Admit(_ context.Context, w storage.Work) (undo func(), err error) {
	return func() {}, first(r.gate, w.Tools)
}

func TestARepeatIsDeliveredOnlyIfItsFirstCallWasCertainlyNotExecuted(t *testing.T) {
	busy, gone := storage.Errorf(storage.Busy, "no place"), storage.Errorf(storage.Unavailable, "no answer")
	for name, row := range map[string]struct {
		backend, gate error
		delivered     int // of both calls
	}{
		"taken":                {delivered: 1},
		"refused":              {backend: busy, delivered: 2},
		"outcome unknown":      {backend: gone, delivered: 1},
		"refused by the gate":  {gate: busy, delivered: 1},
		"the gate has trouble": {gate: gone, delivered: 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := refusing{newTook(), &row.backend, &row.gate}
			h := sessions.New(storagetest.NewMemory(), b, sessions.Limits{}).With(sessions.Parts{Gate: b})
			ctx, delivered := sessions.WithKey(t.Context(), "key"), 0
			c := httpCaller()
			session, err := h.Open(ctx, c, "")
			commontest.OK(t, err)
			_, _, err = h.Initialize(ctx, c, session, parsed(t, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`))
			commontest.OK(t, err)
			for id := range 2 {
				_, err := h.Accept(ctx, c, session, []wire.Message{parsed(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"pay"}}`, id))}, false)
				if id == 1 {
					commontest.OK(t, err)
				}
			}
			for _, d := range *b.deliveries {
				if d.Tools != nil {
					delivered++
				}
			}
			commontest.EqualIn(t, "delivered", row.delivered, delivered)
		})
	}
}

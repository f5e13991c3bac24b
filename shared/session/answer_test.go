package session_test

import (
	"context"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/sessiontest"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// asking is a backend that notes the answers it is handed.
type asking struct {
	nobody
	got *[]string
}

func (a asking) Answer(_ context.Context, answer session.Answer, _ session.Box) error {
	*a.got = append(*a.got, string(answer.Raw))
	return nil
}

func TestTheFirstAnswerToAQuestionIsTheOneTheBoxHears(t *testing.T) {
	_, store, id := listening(t)
	var got []string
	host := session.NewHost(store, asking{got: &got}, session.Limits{})
	awake := session.Box{ID: session.BoxFor("t", "s"), State: session.Awake, Gen: 1, Conn: "c"}
	if err := store.SaveBox(t.Context(), awake); err != nil {
		t.Fatal(err)
	}
	for _, raw := range []string{`{"jsonrpc":"2.0","id":"q-1","result":{"a":1}}`, `{"jsonrpc":"2.0","id":"q-1","result":{"a":2}}`} {
		answer(t, host, id, raw)
	}
	if len(got) != 2 || got[0] != got[1] || got[0] != `{"jsonrpc":"2.0","id":"q-1","result":{"a":1}}` {
		t.Errorf("the box heard %q; want the first answer, again when it was repeated", got)
	}
}

func TestAnAnswerWhosePutWasNotConfirmedReachesTheBoxWhenItIsSentAgain(t *testing.T) {
	_, memory, id := listening(t)
	faulty := sessiontest.NewFaulty(memory, 1, sessiontest.Faults{})
	var got []string
	host := session.NewHost(faulty, asking{got: &got}, session.Limits{})
	if err := memory.SaveBox(t.Context(), session.Box{ID: session.BoxFor("t", "s"), State: session.Awake, Gen: 1}); err != nil {
		t.Fatal(err)
	}
	raw := `{"jsonrpc":"2.0","id":"q-1","result":{}}`
	faulty.Set("PutAnswer", sessiontest.Faults{Unanswered: 1})
	m, err := wire.Parse([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := host.Accept(t.Context(), someone, id, []wire.Message{m}, false); session.CodeOf(err) != session.Unavailable {
		t.Fatalf("got %v, want unavailable", err)
	}
	faulty.Set("PutAnswer", sessiontest.Faults{})
	answer(t, host, id, raw)
	if len(got) != 1 || got[0] != raw {
		t.Errorf("the box heard %q", got)
	}
}

func TestAnAnswerForABoxThatSleepsIsNotKept(t *testing.T) {
	_, store, id := listening(t)
	counting := sessiontest.NewCounting(store)
	var got []string
	host := session.NewHost(counting, asking{got: &got}, session.Limits{})
	answer(t, host, id, `{"jsonrpc":"2.0","id":"q-1","result":{}}`)
	if n := counting.Counts(); n.Writes != 0 || len(got) != 0 {
		t.Errorf("%d writes, the box heard %q; nobody is there to take the answer", n.Writes, got)
	}
}

func answer(t *testing.T, h *session.Host, id session.ID, raw string) {
	t.Helper()
	m, err := wire.Parse([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	call, err := h.Accept(t.Context(), someone, id, []wire.Message{m}, false)
	if err != nil || call != nil {
		t.Fatalf("after %s: call %v, %v; want nothing to wait for", time.Since(begun), call, err)
	}
}

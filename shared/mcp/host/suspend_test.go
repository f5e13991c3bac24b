package host_test

import (
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/session"
	"github.com/dormouse-mcp/dormouse/shared/mcp/host"
	"github.com/dormouse-mcp/dormouse/shared/store/sessiontest"
)

func TestAnAnswerToASuspendedCallIsTakenWhileTheBoxSleeps(t *testing.T) {
	_, store, id := listening(t)
	counting := sessiontest.NewCounting(store)
	var got []string
	h := host.New(counting, asking{got: &got}, host.Limits{})
	stream := session.NewStreamID()
	question := session.QuestionID(stream, 1, 1)
	item := session.Item{Box: session.BoxFor("t", "s"), ID: stream, Address: session.Address{Session: id}}.
		Suspend([]session.Question{{ID: question}}, nil, 1, time.Now(), time.Hour)
	if _, err := store.PutItem(t.Context(), item); err != nil {
		t.Fatal(err)
	}
	raw := `{"jsonrpc":"2.0","id":"` + question + `","result":{}}`
	answer(t, h, id, raw)
	if n := counting.Counts(); n.Calls["PutAnswer"] != 1 || len(got) != 1 || got[0] != raw {
		t.Errorf("calls %v, the backend heard %q", n.Calls, got)
	}
}

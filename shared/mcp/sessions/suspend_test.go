package sessions_test

import (
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func TestAnAnswerToASuspendedCallIsTakenWhileTheBoxSleeps(t *testing.T) {
	_, store, id := listening(t)
	counting := storagetest.NewCounting(store)
	var got []string
	h := sessions.New(counting, asking{got: &got}, sessions.Limits{})
	stream := storage.NewStreamID()
	question := storage.QuestionID(stream, 1, 1)
	item := storage.Item{Box: storage.BoxFor("t", "s"), ID: stream, Address: storage.Address{Session: id}}.
		Suspend([]storage.Question{{ID: question}}, nil, 1, time.Now(), time.Hour)
	if _, err := store.PutItem(t.Context(), item); err != nil {
		t.Fatal(err)
	}
	raw := `{"jsonrpc":"2.0","id":"` + question + `","result":{}}`
	answer(t, h, id, raw)
	if n := counting.Counts(); n.Calls["PutAnswer"] != 1 || len(got) != 1 || got[0] != raw {
		t.Errorf("calls %v, the backend heard %q", n.Calls, got)
	}
}

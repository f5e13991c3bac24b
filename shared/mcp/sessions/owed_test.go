package sessions_test

import (
	"context"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

type forgetful struct{ storage.Store }

func (forgetful) Read(ctx context.Context, _ storage.ID, _ storage.StreamID, _ storage.Index, _ int) (storage.Page, error) {
	return storage.Page{}, ctx.Err()
}

func TestWhatIsOwedAndHasExpiredIsNotPushedForEver(t *testing.T) {
	counting := storagetest.NewCounting(storagetest.NewMemory())
	expires := time.Now().Add(time.Hour)
	s := storage.Session{ID: storage.NewID(), Transport: storage.WebSocket, State: storage.Ready, Conns: []string{"new"}, Expires: expires}
	commontest.OK(t, counting.Create(t.Context(), s))
	commontest.OK(t, counting.PutConnection(t.Context(), storage.Connection{ID: "new", Session: s.ID, Expires: expires}))
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	out := sessions.Publisher{Store: forgetful{counting}, Clients: newGateway("old", "new")}
	stream := storage.NewStreamID()
	err := out.End(ctx, storage.Address{Session: s.ID, Stream: stream, Conn: "old"}, storage.Batch{
		Session: s.ID, Stream: stream, First: 1, Final: true, Events: [][]byte{[]byte(`{}`)}, Expires: expires,
	})
	if n := counting.Counts().Calls["Save"]; err != nil || n > 10 {
		t.Errorf("%v, after the record was written %d times", err, n)
	}
}

func TestStreamsThatAreOwedAndNeverEndDoNotFillTheRecord(t *testing.T) {
	store := storagetest.NewMemory()
	expires := time.Now().Add(time.Hour)
	s := storage.Session{ID: storage.NewID(), Transport: storage.WebSocket, State: storage.Ready, Expires: expires}
	s.Pushed = []storage.Cursor{{Stream: storage.Standalone, Index: 1}}
	for range 1024 {
		s.Pushed = append(s.Pushed, storage.Cursor{Stream: storage.NewStreamID(), Index: 1})
	}
	commontest.OK(t, store.Create(t.Context(), s))
	out := sessions.Publisher{Store: store, Clients: newGateway()}
	newest := storage.NewStreamID()
	if _, err := out.Send(t.Context(), sessions.Published{
		To:    storage.Address{Session: s.ID, Stream: newest, Conn: "gone"},
		Batch: storage.Batch{Session: s.ID, Stream: newest, First: 1, Events: [][]byte{[]byte(`{}`)}, Expires: expires},
	}); err != nil {
		t.Fatal(err)
	}
	got := record(t, store, s.ID)
	first, last := got.Pushed[0], got.Pushed[len(got.Pushed)-1]
	if len(got.Pushed) != 1025 || first.Stream != storage.Standalone || last.Stream != newest {
		t.Errorf("%d entries, the first of %q, the last of %q, want that of %q", len(got.Pushed), first.Stream, last.Stream, newest)
	}
	if got.Pushed[1].Stream == s.Pushed[1].Stream {
		t.Error("the oldest is there still")
	}
}

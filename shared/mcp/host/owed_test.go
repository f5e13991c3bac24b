package host_test

import (
	"context"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/session"
	"github.com/dormouse-mcp/dormouse/shared/mcp/host"
	"github.com/dormouse-mcp/dormouse/shared/store/sessiontest"
)

// forgetful is a store whose log has no events left.
type forgetful struct{ session.Store }

func (forgetful) Read(ctx context.Context, _ session.ID, _ session.StreamID, _ session.Index, _ int) (session.Page, error) {
	return session.Page{}, ctx.Err()
}

func TestWhatIsOwedAndHasExpiredIsNotPushedForEver(t *testing.T) {
	counting := sessiontest.NewCounting(sessiontest.NewMemory())
	expires := time.Now().Add(time.Hour)
	s := session.Session{ID: session.NewID(), Transport: session.WebSocket, State: session.Ready, Conns: []string{"new"}, Expires: expires}
	if err := counting.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if err := counting.PutConnection(t.Context(), session.Connection{ID: "new", Session: s.ID, Expires: expires}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	out := host.Outlet{Store: forgetful{counting}, Clients: newGateway("old", "new")}
	stream := session.NewStreamID()
	err := out.End(ctx, session.Address{Session: s.ID, Stream: stream, Conn: "old"}, session.Batch{
		Session: s.ID, Stream: stream, First: 1, Final: true, Events: [][]byte{[]byte(`{}`)}, Expires: expires,
	})
	if n := counting.Counts().Calls["Save"]; err != nil || n > 10 {
		t.Errorf("%v, after the record was written %d times", err, n)
	}
}

func TestStreamsThatAreOwedAndNeverEndDoNotFillTheRecord(t *testing.T) {
	store := sessiontest.NewMemory()
	expires := time.Now().Add(time.Hour)
	s := session.Session{ID: session.NewID(), Transport: session.WebSocket, State: session.Ready, Expires: expires}
	s.Pushed = []session.Cursor{{Stream: session.Standalone, Index: 1}}
	for range 1024 {
		s.Pushed = append(s.Pushed, session.Cursor{Stream: session.NewStreamID(), Index: 1})
	}
	if err := store.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	out := host.Outlet{Store: store, Clients: newGateway()}
	newest := session.NewStreamID()
	if _, err := out.Send(t.Context(), host.Posting{
		To:    session.Address{Session: s.ID, Stream: newest, Conn: "gone"},
		Batch: session.Batch{Session: s.ID, Stream: newest, First: 1, Events: [][]byte{[]byte(`{}`)}, Expires: expires},
	}); err != nil {
		t.Fatal(err)
	}
	got := record(t, store, s.ID)
	first, last := got.Pushed[0], got.Pushed[len(got.Pushed)-1]
	if len(got.Pushed) != 1025 || first.Stream != session.Standalone || last.Stream != newest {
		t.Errorf("%d entries, the first of %q, the last of %q, want that of %q", len(got.Pushed), first.Stream, last.Stream, newest)
	}
	if got.Pushed[1].Stream == s.Pushed[1].Stream {
		t.Error("the oldest is there still")
	}
}

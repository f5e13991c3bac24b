package session_test

import (
	"context"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/sessiontest"
)

// forgetful is a store whose log has nothing any more when it is read.
type forgetful struct{ session.Store }

func (forgetful) Read(ctx context.Context, _ session.ID, _ session.StreamID, _ session.Index, _ int) (session.Page, error) {
	return session.Page{}, ctx.Err()
}

// hearing are clients that take what is posted.
type hearing struct{}

func (hearing) Post(context.Context, string, []byte) error { return nil }
func (hearing) Close(context.Context, string) error        { return nil }

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
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	out := session.Outlet{Store: forgetful{counting}, Clients: hearing{}}
	stream := session.NewStreamID()
	err := out.End(ctx, session.Address{Session: s.ID, Stream: stream, Conn: "old"}, session.Batch{
		Session: s.ID, Stream: stream, First: 1, Final: true, Events: [][]byte{[]byte(`{}`)}, Expires: expires,
	})
	if n := counting.Counts().Calls["Save"]; err != nil || n > 10 {
		t.Errorf("%v, after the record was written %d times", err, n)
	}
}

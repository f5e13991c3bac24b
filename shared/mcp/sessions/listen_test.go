package sessions_test

import (
	"context"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

type nobody struct{}

func (nobody) Deliver(context.Context, sessions.Delivery, storage.Box) (sessions.Tracker, error) {
	return nil, nil
}

func (nobody) Track(context.Context, storage.Session, storage.StreamID) (sessions.Tracker, error) {
	return nil, storage.NotFound
}
func (nobody) Answer(context.Context, storage.Answer, storage.Box) error { return nil }
func (nobody) End(context.Context, storage.Session, storage.Box) error   { return nil }

var someone = sessions.Caller{Server: sessions.Server{Name: "s"}, Identity: storage.Identity{Tenant: "t", Principal: "p"}, Transport: storage.HTTP}

func parsed(t *testing.T, raw string) wire.Message {
	t.Helper()
	m, err := wire.Parse([]byte(raw))
	commontest.OK(t, err)
	return m
}

func accept(t *testing.T, h *sessions.Manager, id storage.ID, raw string) (*sessions.Call, error) {
	t.Helper()
	return h.Accept(t.Context(), someone, id, []wire.Message{parsed(t, raw)}, false)
}

func awake(t *testing.T, store storage.Store) {
	t.Helper()
	commontest.OK(t, store.SaveBox(t.Context(), storage.Box{ID: storage.BoxFor("t", "s"), State: storage.Awake, Gen: 1}))
}

// listening returns a session with three events on its standalone stream.
func listening(t *testing.T) (*sessions.Manager, *storagetest.Memory, storage.ID) {
	t.Helper()
	store := storagetest.NewMemory()
	now := time.Now()
	s := storage.Session{
		ID: storage.NewID(), Server: "s", Tenant: "t", Principal: "p", Transport: storage.HTTP, State: storage.Ready,
		Pushes: true, Created: now, Used: now, Expires: now.Add(24 * time.Hour),
	}
	commontest.OK(t, store.Create(t.Context(), s))
	push(t, store, s.ID, 1, "1", "2", "3")
	return sessions.New(store, nobody{}, sessions.Limits{}), store, s.ID
}

func push(t *testing.T, store storage.Store, id storage.ID, first storage.Index, raws ...string) {
	t.Helper()
	b := storage.Batch{Session: id, First: first, Gen: 1, Seq: int64(first), Expires: time.Now().Add(time.Hour)}
	for _, raw := range raws {
		b.Events = append(b.Events, []byte(raw))
	}
	commontest.OK(t, store.Append(t.Context(), b))
}

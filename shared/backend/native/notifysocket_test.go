package native

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// sockets are the connections to a WebSocket API.
type sockets struct {
	mu     sync.Mutex
	open   map[string]bool
	posted []string
}

func (s *sockets) Post(_ context.Context, conn string, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.open[conn] {
		return storage.Closed
	}
	s.posted = append(s.posted, conn+" "+string(data))
	return nil
}

func (s *sockets) Close(context.Context, string) error { return nil }

func TestAWebSocketClientIsToldNowOrWhenItIsBack(t *testing.T) {
	a := newAgent(t, storagetest.NewMemory())
	api := &sockets{open: map[string]bool{"c1": true}}
	ctx := t.Context()
	change := func(change func(*storage.Session)) {
		t.Helper()
		s := a.session().in.record
		change(&s)
		commontest.OK(t, a.store.Save(ctx, s))
	}
	say := func(what string) {
		t.Helper()
		s := a.session()
		s.in.k = NewBackend(Config{Store: a.store, Clients: api})
		commontest.OK(t, s.Notify(ctx, wire.NotifyMessage, map[string]string{"data": what}))
	}
	told := func(conn, what string) string {
		return conn + ` {"jsonrpc":"2.0","method":"notifications/message","params":{"data":"` + what + `"}}`
	}
	connect := func(conn string) {
		t.Helper()
		commontest.OK(t, a.store.PutConnection(ctx, storage.Connection{ID: conn, Session: a.id, Expires: time.Now().Add(time.Hour)}))
		change(func(s *storage.Session) { s.Transport, s.Conns = storage.WebSocket, []string{conn} })
	}
	connect("c1")
	say("now")
	change(func(s *storage.Session) { s.Conns = nil })
	api.open = map[string]bool{"c2": true}
	say("while nobody is there")
	connect("c2")
	commontest.OK(t, sessions.New(a.store, nil, sessions.Limits{}).With(sessions.Parts{Clients: api}).Push(ctx, a.id))
	say("later")
	commontest.Same(t, []string{told("c1", "now"), told("c2", "while nobody is there"), told("c2", "later")}, api.posted)
}

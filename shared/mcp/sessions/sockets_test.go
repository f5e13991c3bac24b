package sessions_test

import (
	"fmt"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func TestConnectKeepsEightConnections(t *testing.T) {
	store := storagetest.NewMemory()
	h := wsHost(store, newGateway())
	s := connect(t, h, "c1", "")
	for n := 2; n <= 10; n++ {
		connect(t, h, fmt.Sprintf("c%d", n), s.ID)
		commontest.EqualIn(t, "connections", min(n, 8), len(record(t, store, s.ID).Conns))
	}
	commontest.EqualIn(t, "the oldest", "c3", record(t, store, s.ID).Conns[0])
}

func TestAnEventIDOfAnotherSessionReplaysNothing(t *testing.T) {
	store, g := storagetest.NewMemory(), newGateway("c1", "c2", "c3")
	h := wsHost(store, g)
	theirs, mine := connect(t, h, "c1", ""), connect(t, h, "c2", "")
	a := storage.Address{Session: theirs.ID, Stream: storage.NewStreamID(), Conn: "c1"}
	commontest.OK(t, (sessions.Publisher{Store: store, Clients: g}).Append(t.Context(), a, batchOf(a, 1, `{"n":1}`)))
	connect(t, h, "c3", mine.ID, storage.EventID{Stream: a.Stream})
	commontest.OK(t, h.Push(t.Context(), mine.ID))
	commontest.Equal(t, 0, len(g.got["c3"]))
}

func TestTheEndOfInitializeSettlesTheSessionBeforeItCanBeRead(t *testing.T) {
	store, g := storagetest.NewMemory(), newGateway("c1")
	h := wsHost(store, g)
	for name, c := range map[string]struct {
		init   string // capabilities of the client
		end    string
		state  storage.State
		quit   storage.Quit
		pushes bool
	}{
		"result": {`{}`, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{"logging":{}}}}`, storage.Created, storage.QuitNone, true},
		"an extension of both": {
			`{"extensions":{"a/b":{},"c/d":{}}}`, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{"extensions":{"c/d":{"x":1}}}}}`, storage.Created, storage.QuitNone, true,
		},
		"error":     {`{}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no"}}`, storage.Ended, storage.QuitNoInit, false},
		"cancelled": {`{}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32800,"message":"no"}}`, storage.Ended, storage.QuitCanceled, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := connect(t, h, "c1", "")
			m := parsed(t, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":`+c.init+`}}`)
			_, _, err := h.Initialize(t.Context(), wsCaller("c1"), s.ID, m)
			commontest.OK(t, err)
			a := storage.Address{Session: s.ID, Stream: storage.NewStreamID(), Conn: "c1", Init: true}
			b := batchOf(a, 1, c.end)
			b.Final = true
			for range 2 { // the ack was lost
				commontest.OK(t, (sessions.Publisher{Store: store, Clients: g}).Append(t.Context(), a, b))
			}
			if got := record(t, store, s.ID); got.State != c.state || got.Quit != c.quit || got.Pushes != c.pushes {
				t.Errorf("state %s, quit %q, pushes %v", got.State, got.Quit, got.Pushes)
			}
		})
	}
}

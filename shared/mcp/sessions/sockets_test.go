package sessions_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
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

func TestConnectRefusesWhatIsNoCursor(t *testing.T) {
	h := wsHost(storagetest.NewMemory(), newGateway())
	s := connect(t, h, "c1", "")
	stream := storage.NewStreamID()
	many := make([]storage.EventID, 33)
	for i := range many {
		many[i].Stream = storage.NewStreamID()
	}
	for name, cursors := range map[string][]storage.EventID{
		"stream of nobody":  {{Stream: "abc", Index: 1}},
		"two of one stream": {{Stream: stream, Index: 1}, {Stream: stream, Index: 2}},
		"too many":          many,
	} {
		if _, _, err := h.Connect(t.Context(), wsCaller("c2"), nil, s.ID, map[string][]storage.EventID{"": cursors}); storage.CodeOf(err) != storage.Invalid && !errors.Is(err, storage.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
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

func TestInitializeOfAnOpenedSessionIsTakenOnceAndItsRepeatToo(t *testing.T) {
	store := storagetest.NewMemory()
	h := wsHost(store, newGateway())
	s := connect(t, h, "c1", "")
	initialize := func(name string) error {
		m := parsed(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","clientInfo":{"name":%q}}}`, name))
		_, _, err := h.Initialize(t.Context(), wsCaller("c1"), s.ID, m)
		return err
	}
	for range 2 { // the answer to the first was lost
		commontest.OK(t, initialize("a"))
	}
	if err := initialize("b"); !errors.Is(err, storage.Invalid) {
		t.Errorf("another initialize: %v", err)
	}
	if got := record(t, store, s.ID); got.State != storage.Created || got.Version != wire.V20250618 {
		t.Errorf("state %s, version %s", got.State, got.Version)
	}
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
		"extensions of either": {
			`{"extensions":{"a/b":{}}}`, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{"extensions":{"c/d":{}}}}}`, storage.Created, storage.QuitNone, false,
		},
		"error":     {`{}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no"}}`, storage.Ended, storage.QuitNoInit, false},
		"cancelled": {`{}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32800,"message":"no"}}`, storage.Ended, storage.QuitCanceled, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := connect(t, h, "c1", "")
			m := parsed(t, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":`+c.init+`}}`)
			if _, _, err := h.Initialize(t.Context(), wsCaller("c1"), s.ID, m); err != nil {
				t.Fatal(err)
			}
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

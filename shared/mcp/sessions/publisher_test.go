package sessions_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// gateway is the WebSocket API of clients. A message that it accepts has arrived.
type gateway struct {
	up       map[string]bool
	before   func() error // each post; its error is that of the post
	got      map[string][]string
	closings []string
}

func newGateway(conns ...string) *gateway {
	g := &gateway{up: map[string]bool{}, got: map[string][]string{}, before: func() error { return nil }}
	for _, c := range conns {
		g.up[c] = true
	}
	return g
}

func (g *gateway) Post(_ context.Context, conn string, data []byte) error {
	if err := g.before(); err != nil {
		return err
	}
	if !g.up[conn] {
		return storage.Errorf(storage.Closed, "simulated: gone")
	}
	g.got[conn] = append(g.got[conn], string(data))
	return nil
}

func (g *gateway) Close(_ context.Context, conn string) error {
	g.closings = append(g.closings, conn)
	delete(g.up, conn)
	return nil
}

func wsCaller(conn string) sessions.Caller {
	return sessions.Caller{
		Server: sessions.Server{Name: "s", Digest: "d"}, Identity: storage.Identity{Tenant: "t", Principal: "p"}, Transport: storage.WebSocket, Conn: conn,
	}
}

func wsHost(store storage.Store, g *gateway) *sessions.Manager {
	return sessions.New(store, nobody{}, sessions.Limits{InitTimeout: 24 * time.Hour}).With(sessions.Parts{Clients: g})
}

func connect(t *testing.T, h *sessions.Manager, conn string, resume storage.ID, cursors ...storage.EventID) storage.Session {
	t.Helper()
	s, _, err := h.Connect(t.Context(), wsCaller(conn), nil, resume, map[string][]storage.EventID{"": cursors})
	commontest.OK(t, err)
	return s
}

func batchOf(a storage.Address, first storage.Index, events ...string) storage.Batch {
	b := storage.Batch{Session: a.Session, Stream: a.Stream, First: first, Gen: 1, Seq: int64(first)}
	for _, e := range events {
		b.Events = append(b.Events, []byte(e))
	}
	return b
}

func TestAnEventIsInTheLogBeforeItIsPosted(t *testing.T) {
	store, g := storagetest.NewMemory(), newGateway("c1")
	s := connect(t, wsHost(store, g), "c1", "")
	a := storage.Address{Session: s.ID, Stream: storage.NewStreamID(), Conn: "c1"}
	g.before = func() error {
		tail, err := store.Tail(t.Context(), s.ID, a.Stream)
		commontest.EqualIn(t, "the log ends, when it is posted, at", 1, tail.Last)
		return err
	}
	out := sessions.Publisher{Store: store, Clients: g}
	commontest.OK(t, out.Append(t.Context(), a, batchOf(a, 1, `{"n":1}`)))
	commontest.Same(t, []string{`{"n":1}`}, g.got["c1"])
}

func TestAPostOfWhichNothingIsKnownIsMadeAgainAndTheStreamGoesOnAsBefore(t *testing.T) {
	store, g := storagetest.NewMemory(), newGateway("c1")
	s := connect(t, wsHost(store, g), "c1", "")
	a := storage.Address{Session: s.ID, Stream: storage.NewStreamID(), Conn: "c1"}
	out := sessions.Publisher{Store: store, Clients: g}
	tries := 0
	g.before = func() error {
		if tries++; tries == 2 {
			return storage.Errorf(storage.Unavailable, "simulated: nothing is known of the post")
		}
		return nil
	}
	commontest.OK(t, out.Append(t.Context(), a, batchOf(a, 1, `{"n":1}`, `{"n":2}`, `{"n":3}`)))
	commontest.Same(t, []string{`{"n":1}`, `{"n":2}`, `{"n":3}`}, g.got["c1"])
	if s := record(t, store, s.ID); s.Owes() {
		t.Errorf("still owed: %+v", s.Pushed)
	}
}

// A client that connects anew names what it has, which ends the lease for pushing.
func TestAnInstanceThatHasLostItsLeaseDoesNotMoveTheCursors(t *testing.T) {
	store, g := storagetest.NewMemory(), newGateway("c1", "c2")
	h := wsHost(store, g)
	s := connect(t, h, "c1", "")
	a := storage.Address{Session: s.ID, Stream: storage.NewStreamID(), Conn: "c1"}
	posts := 0
	g.before = func() error {
		switch posts++; posts {
		case 1:
			return storage.Errorf(storage.Unavailable, "simulated: the client does not read")
		case 2:
			connect(t, h, "c2", s.ID, storage.EventID{Stream: a.Stream})
			g.up["c1"] = true // until the gateway has closed it
		}
		return nil
	}
	events := []string{`{"n":1}`, `{"n":2}`}
	commontest.OK(t, (sessions.Publisher{Store: store, Clients: g}).Append(t.Context(), a, batchOf(a, 1, events...)))
	commontest.OK(t, h.Push(t.Context(), s.ID))
	commontest.Same(t, events, g.got["c2"])
}

func TestWhatIsTooLargeForAWebSocketBecomesAnErrorAndStaysInTheLog(t *testing.T) {
	store, g := storagetest.NewMemory(), newGateway("c1")
	s := connect(t, wsHost(store, g), "c1", "")
	a := storage.Address{Session: s.ID, Stream: storage.NewStreamID(), Conn: "c1"}
	pad := strings.Repeat("x", storage.MaxPost)
	progress := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"pad":"` + pad + `"}}`
	response := `{"jsonrpc":"2.0","id":9007199254740993,"result":{"pad":"` + pad + `"}}`
	commontest.OK(t, (sessions.Publisher{Store: store, Clients: g}).Append(t.Context(), a, batchOf(a, 1, progress, response)))
	got := g.got["c1"]
	if len(got) != 2 || !strings.Contains(got[0], "notifications/message") ||
		!strings.Contains(got[1], `"id":9007199254740993,"error"`) || !strings.Contains(got[1], "131072") || !strings.Contains(got[1], "Streamable HTTP") {
		t.Errorf("posted %.300q", got)
	}
	page, err := store.Read(t.Context(), s.ID, a.Stream, 0, 10)
	if err != nil || len(page.Events) != 2 || string(page.Events[1].Raw) != response {
		t.Errorf("the log has not the real ones: %v", err)
	}
}

func TestBatchesOfOneFrameAreCopiedToTheOutStreamOnce(t *testing.T) {
	store := storagetest.NewMemory()
	h := sessions.New(store, nobody{}, sessions.Limits{})
	c := wsCaller("")
	c.Transport = storage.SSE
	session, err := h.Open(t.Context(), c, "")
	commontest.OK(t, err)
	out := sessions.Publisher{Store: store}
	address := func(stream storage.StreamID) storage.Address {
		return storage.Address{Session: session, Stream: stream, LegacySSE: true}
	}
	one, two := address(storage.Standalone), address(storage.NewStreamID())
	frame := []sessions.Published{{To: one, Batch: batchOf(one, 1, `{"n":1}`)}, {To: two, Batch: batchOf(two, 1, `{"n":2}`, `{"n":3}`)}}
	for range 2 { // the ack of the first was lost
		_, err := out.Send(t.Context(), frame...)
		commontest.OK(t, err)
	}
	commontest.OK(t, h.Say(t.Context(), session, []byte(`{"n":4}`)))
	if _, err := out.Send(t.Context(), frame...); err != nil { // a late repeat
		t.Fatal(err)
	}
	page, err := store.Read(t.Context(), session, storage.LegacySSE, 0, 10)
	commontest.OK(t, err)
	var got []string
	for _, e := range page.Events {
		got = append(got, string(e.Raw))
	}
	commontest.Same(t, []string{`{"n":1}`, `{"n":2}`, `{"n":3}`, `{"n":4}`}, got)
}

func TestAnEndThatWasWrittenButNotCopiedIsCopiedByTheNext(t *testing.T) {
	store := storagetest.NewMemory()
	a := storage.Address{Session: "s", Stream: storage.NewStreamID(), LegacySSE: true, Requests: []json.RawMessage{[]byte("1")}}
	out := sessions.Publisher{Store: store}
	b := batchOf(a, 1, `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"x"}}`)
	b.Gen, b.Seq, b.Final = 0, 0, true
	_, _, err := out.Write(t.Context(), a, b)
	commontest.OK(t, err)
	tail, err := store.Tail(t.Context(), "s", a.Stream)
	commontest.OK(t, err)
	for range 2 {
		commontest.OK(t, out.Ended(t.Context(), a, tail, time.Time{}))
	}
	if tail, err = store.Tail(t.Context(), "s", storage.LegacySSE); err != nil || tail.Last != 1 {
		t.Errorf("the end was copied %d times, %v", tail.Last, err)
	}
}

func TestTheEndOfACallIsOwedHoweverLongItTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storagetest.NewMemory()
		expires := time.Now().Add(90 * 24 * time.Hour)
		s := storage.Session{ID: storage.NewID(), Transport: storage.WebSocket, State: storage.Ready, Expires: expires}
		commontest.OK(t, store.Create(t.Context(), s))
		calls := []storage.StreamID{storage.NewStreamID(), storage.NewStreamID()}
		time.Sleep(30 * 24 * time.Hour)
		for _, call := range calls {
			to := storage.Address{Session: s.ID, Stream: call, Conn: "gone"}
			end := batchOf(to, 1, `{}`)
			end.Final, end.Expires = true, expires
			_, err := sessions.Publisher{Store: store, Clients: newGateway()}.Send(t.Context(), sessions.Published{To: to, Batch: end})
			commontest.OK(t, err)
		}
		commontest.EqualIn(t, "ends that are owed", len(calls), len(record(t, store, s.ID).Pushed))
	})
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
	_, err := out.Send(t.Context(), sessions.Published{
		To:    storage.Address{Session: s.ID, Stream: newest, Conn: "gone"},
		Batch: storage.Batch{Session: s.ID, Stream: newest, First: 1, Events: [][]byte{[]byte(`{}`)}, Expires: expires},
	})
	commontest.OK(t, err)
	got := record(t, store, s.ID)
	first, last := got.Pushed[0], got.Pushed[len(got.Pushed)-1]
	if len(got.Pushed) != 1025 || first.Stream != storage.Standalone || last.Stream != newest {
		t.Errorf("%d entries, the first of %q, the last of %q, want that of %q", len(got.Pushed), first.Stream, last.Stream, newest)
	}
	commontest.EqualIn(t, "the oldest is there still", false, got.Pushed[1].Stream == s.Pushed[1].Stream)
}

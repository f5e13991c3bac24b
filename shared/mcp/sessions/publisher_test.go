package sessions_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
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
	mu       sync.Mutex
	up       map[string]bool
	blind    map[string]bool // open, but the client no longer listens
	got      []arrival
	chance   func(percent int) bool
	pause    func()
	faults   bool
	closings []string
}

type arrival struct{ conn, data string }

func newGateway(conns ...string) *gateway {
	g := &gateway{up: map[string]bool{}, blind: map[string]bool{}, chance: func(int) bool { return false }, pause: func() {}}
	for _, c := range conns {
		g.up[c] = true
	}
	return g
}

func (g *gateway) Post(ctx context.Context, conn string, data []byte) error {
	g.pause()
	if err := ctx.Err(); err != nil {
		return storage.Errorf(storage.Unavailable, "post broken off").Because(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.faults && g.chance(8) {
		return storage.Errorf(storage.Unavailable, "simulated: not sent")
	}
	if !g.up[conn] {
		return storage.Errorf(storage.Closed, "simulated: gone")
	}
	if !g.blind[conn] {
		g.got = append(g.got, arrival{conn, string(data)})
	}
	if g.faults && g.chance(8) {
		return storage.Errorf(storage.Unavailable, "simulated: the answer was lost")
	}
	return nil
}

func (g *gateway) Close(_ context.Context, conn string) error {
	g.pause()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closings = append(g.closings, conn)
	delete(g.up, conn)
	return nil
}

func (g *gateway) set(conn string, up bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.up[conn] = up && !slices.Contains(g.closings, conn)
}

// arrived returns the data that arrived over a connection, or over all for "".
func (g *gateway) arrived(conn string) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []string
	for _, a := range g.got {
		if conn == "" || a.conn == conn {
			out = append(out, a.data)
		}
	}
	return out
}

func wsCaller(conn string) sessions.Caller {
	return sessions.Caller{
		Server: sessions.Server{Name: "s", Digest: "d"}, Tenant: "t", Principal: "p", Transport: storage.WebSocket, Conn: conn,
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
	g.pause = func() {
		if tail, err := store.Tail(t.Context(), s.ID, a.Stream); err != nil || tail.Last != 1 {
			t.Errorf("when it is posted the log ends at %d, %v", tail.Last, err)
		}
	}
	out := sessions.Publisher{Store: store, Clients: g}
	commontest.OK(t, out.Append(t.Context(), a, batchOf(a, 1, `{"n":1}`)))
	commontest.Same(t, []string{`{"n":1}`}, g.arrived("c1"))
}

func TestAPostToALivingConnectionTouchesNoRecord(t *testing.T) {
	store, g := storagetest.NewCounting(storagetest.NewMemory()), newGateway("c1")
	s := connect(t, wsHost(store, g), "c1", "")
	a := storage.Address{Session: s.ID, Stream: storage.NewStreamID(), Conn: "c1"}
	store.Reset()
	commontest.OK(t, (sessions.Publisher{Store: store, Clients: g}).Append(t.Context(), a, batchOf(a, 1, `{"n":1}`, `{"n":2}`)))
	if n := store.Counts(); n.Reads != 0 || n.Writes != 1 {
		t.Errorf("%d reads and %d writes, want 0 and 1", n.Reads, n.Writes)
	}
}

func TestAnEventForAGoneConnectionGoesToTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, g := storagetest.NewMemory(), newGateway("c1", "c2")
		h := wsHost(store, g)
		s := connect(t, h, "c1", "")
		a := storage.Address{Session: s.ID, Stream: storage.NewStreamID(), Conn: "c1"}
		out := sessions.Publisher{Store: store, Clients: g}
		for n, up := range []bool{true, false} {
			g.set("c1", up)
			time.Sleep(time.Minute)
			b := batchOf(a, storage.Index(n+1), fmt.Sprintf(`{"n":%d}`, n+1))
			commontest.OK(t, out.Append(t.Context(), a, b))
		}
		s = connect(t, h, "c2", s.ID)
		if !s.Owes() {
			t.Fatal("nothing is owed")
		}
		commontest.OK(t, h.Push(t.Context(), s.ID))
		commontest.Same(t, []string{`{"n":2}`}, g.arrived("c2"))
	})
}

func TestAPostOfWhichNothingIsKnownIsMadeAgainAndTheStreamGoesOnAsBefore(t *testing.T) {
	store, g := storagetest.NewMemory(), newGateway("c1")
	s := connect(t, wsHost(store, g), "c1", "")
	a := storage.Address{Session: s.ID, Stream: storage.NewStreamID(), Conn: "c1"}
	out := sessions.Publisher{Store: store, Clients: g}
	tries := 0
	g.faults, g.chance = true, func(int) bool { tries++; return tries == 3 } // each post draws twice
	commontest.OK(t, out.Append(t.Context(), a, batchOf(a, 1, `{"n":1}`, `{"n":2}`, `{"n":3}`)))
	commontest.Same(t, []string{`{"n":1}`, `{"n":2}`, `{"n":3}`}, g.arrived("c1"))
	if s := record(t, store, s.ID); s.Owes() {
		t.Errorf("still owed: %+v", s.Pushed)
	}
}

func TestWhatIsTooLargeForAWebSocketBecomesAnErrorAndStaysInTheLog(t *testing.T) {
	store, g := storagetest.NewMemory(), newGateway("c1")
	s := connect(t, wsHost(store, g), "c1", "")
	a := storage.Address{Session: s.ID, Stream: storage.NewStreamID(), Conn: "c1"}
	pad := strings.Repeat("x", storage.MaxPost)
	progress := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"pad":"` + pad + `"}}`
	response := `{"jsonrpc":"2.0","id":9007199254740993,"result":{"pad":"` + pad + `"}}`
	commontest.OK(t, (sessions.Publisher{Store: store, Clients: g}).Append(t.Context(), a, batchOf(a, 1, progress, response)))
	got := g.arrived("c1")
	if len(got) != 2 || !strings.Contains(got[0], "notifications/message") ||
		!strings.Contains(got[1], `"id":9007199254740993,"error"`) || !strings.Contains(got[1], "131072") || !strings.Contains(got[1], "Streamable HTTP") {
		t.Errorf("posted %.300q", got)
	}
	page, err := store.Read(t.Context(), s.ID, a.Stream, 0, 10)
	if err != nil || len(page.Events) != 2 || string(page.Events[1].Raw) != response {
		t.Errorf("the log has not the real ones: %v", err)
	}
}

func TestAClientThatAskedForEventIDsIsToldEachOne(t *testing.T) {
	store, g := storagetest.NewMemory(), newGateway("c1")
	s := connect(t, wsHost(store, g), "c1", "")
	a := storage.Address{Session: s.ID, Stream: storage.NewStreamID(), Conn: "c1", EventIDs: true}
	commontest.OK(t, (sessions.Publisher{Store: store, Clients: g}).Append(t.Context(), a, batchOf(a, 1, `{"n":1}`)))
	want := []string{`{"n":1}`, fmt.Sprintf(
		`{"jsonrpc":"2.0","method":"notifications/dormouse/event","params":{"sessionId":"%s","eventId":"1/%s"}}`, s.ID, a.Stream)}
	commontest.Same(t, want, g.arrived("c1"))
}

func TestBatchesOfOneFrameAreCopiedToTheOutStreamOnce(t *testing.T) {
	store := storagetest.NewMemory()
	h := sessions.New(store, nobody{}, sessions.Limits{})
	c := wsCaller("")
	c.Transport = storage.SSE
	s, err := h.Open(t.Context(), c)
	commontest.OK(t, err)
	out := sessions.Publisher{Store: store}
	address := func(stream storage.StreamID) storage.Address {
		return storage.Address{Session: s.ID, Stream: stream, LegacySSE: true}
	}
	one, two := address(storage.Standalone), address(storage.NewStreamID())
	frame := []sessions.Published{{To: one, Batch: batchOf(one, 1, `{"n":1}`)}, {To: two, Batch: batchOf(two, 1, `{"n":2}`, `{"n":3}`)}}
	for range 2 { // the ack of the first was lost
		if _, err := out.Send(t.Context(), frame...); err != nil {
			t.Fatal(err)
		}
	}
	commontest.OK(t, h.Say(t.Context(), s.ID, []byte(`{"n":4}`)))
	if _, err := out.Send(t.Context(), frame...); err != nil { // a late repeat
		t.Fatal(err)
	}
	page, err := store.Read(t.Context(), s.ID, storage.LegacySSE, 0, 10)
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
	if _, _, err := out.Write(t.Context(), a, b); err != nil {
		t.Fatal(err)
	}
	tail, err := store.Tail(t.Context(), "s", a.Stream)
	commontest.OK(t, err)
	for range 2 {
		commontest.OK(t, out.Ended(t.Context(), a, tail, time.Time{}))
	}
	if tail, err = store.Tail(t.Context(), "s", storage.LegacySSE); err != nil || tail.Last != 1 {
		t.Errorf("the end was copied %d times, %v", tail.Last, err)
	}
}

// TestPushedEventsReachOneConnectionInOrder runs functions that append events. Meanwhile
// connections come and go, and clients come back and name their last events.
func TestPushedEventsReachOneConnectionInOrder(t *testing.T) {
	for seed := range uint64(150) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { newPushWorld(t, seed).run() })
		})
	}
}

// pushWorld is one session with streams that grow, and a client that loses its connections.
type pushWorld struct {
	t       *testing.T
	mu      sync.Mutex
	rng     *rand.Rand
	g       *gateway
	memory  *storagetest.Memory
	store   storage.Store // memory, which takes its time and may fail
	host    *sessions.Manager
	id      storage.ID
	current string // the connection that requests come over
	conns   int
	wg      sync.WaitGroup
}

func newPushWorld(t *testing.T, seed uint64) *pushWorld {
	w := &pushWorld{t: t, rng: rand.New(rand.NewPCG(seed, 1)), g: newGateway(), memory: storagetest.NewMemory()}
	w.g.chance, w.g.pause, w.g.faults = w.chance, func() { w.nap(20 * time.Millisecond) }, seed%2 == 1
	faults := storagetest.Faults{Slow: 1, Delay: 10 * time.Millisecond}
	if w.g.faults {
		faults.Lost, faults.Unanswered = 0.03, 0.03
	}
	w.store = storagetest.NewFaulty(w.memory, seed, faults)
	w.host = wsHost(w.store, w.g)
	return w
}

func (w *pushWorld) draw(n int64) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.Int64N(n)
}

func (w *pushWorld) chance(percent int) bool { return w.draw(100) < int64(percent) }
func (w *pushWorld) nap(most time.Duration)  { time.Sleep(time.Duration(w.draw(int64(most)))) }

// until repeats do until it succeeds.
func (w *pushWorld) until(what string, do func(ctx context.Context) error) {
	for n := range 1000 {
		ctx, cancel := context.WithTimeout(w.t.Context(), 29*time.Second)
		err := do(ctx)
		cancel()
		if err == nil {
			return
		}
		if !w.g.faults || n == 999 {
			w.t.Errorf("%s: %v", what, err)
			return
		}
		w.nap(time.Second)
	}
}

// join makes a new connection. The connection takes messages only after Connect.
func (w *pushWorld) join(cursors []storage.EventID) {
	w.conns++
	conn := fmt.Sprintf("c%d", w.conns)
	w.until("connect", func(ctx context.Context) error {
		s, _, err := w.host.Connect(ctx, wsCaller(conn), nil, w.id, map[string][]storage.EventID{"": cursors})
		if err == nil {
			w.id = s.ID
		}
		return err
	})
	id := w.id
	w.wg.Go(func() {
		w.nap(200 * time.Millisecond)
		w.g.set(conn, true)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.current = conn // a request comes over a connection that is ready
	})
	w.wg.Go(func() { w.until("push", func(ctx context.Context) error { return w.host.Push(ctx, id) }) })
}

func (w *pushWorld) appender(stream storage.StreamID, events int) {
	a := storage.Address{Session: w.id, Stream: stream, Conn: w.conn()}
	out := sessions.Publisher{Store: w.store, Clients: w.g}
	for first := storage.Index(1); int(first) <= events; {
		w.nap(3 * time.Second)
		if stream == storage.Standalone {
			a.Conn = w.conn() // the newest ticket
		}
		var batch []string
		for range 1 + w.draw(3) {
			batch = append(batch, fmt.Sprintf(`{"stream":%q,"n":%d}`, stream, int(first)+len(batch)))
		}
		b := batchOf(a, first, batch...)
		next := first + storage.Index(len(batch))
		b.Final = stream != storage.Standalone && int(next) > events
		w.until("append", func(ctx context.Context) error { return out.Append(ctx, a, b) })
		first = next
	}
}

func (w *pushWorld) conn() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.current
}

func (w *pushWorld) run() {
	w.join(nil)
	w.wg.Wait()
	streams := []storage.StreamID{storage.Standalone}
	w.wg.Go(func() { w.appender(storage.Standalone, 10) })
	for range 2 + w.draw(4) {
		stream := storage.NewStreamID()
		streams = append(streams, stream)
		w.wg.Go(func() { w.appender(stream, 8) })
		w.nap(2 * time.Second)
		w.client(streams)
	}
	w.wg.Wait()
	w.join(nil)
	w.wg.Wait()
	for _, stream := range streams {
		w.check(stream)
	}
}

// client does something random to its connection.
func (w *pushWorld) client(streams []storage.StreamID) {
	conn := w.conn()
	switch w.draw(4) {
	case 0: // the connection breaks, and the client is away for a while
		w.g.set(conn, false)
		if w.chance(50) {
			w.wg.Go(func() { w.until("disconnect", func(ctx context.Context) error { return w.host.Disconnect(ctx, conn) }) })
		}
		w.nap(5 * time.Second)
		w.join(nil)
	case 1: // the client stops listening, and comes back with its last events
		w.g.mu.Lock()
		for n := range w.conns {
			w.g.blind[fmt.Sprintf("c%d", n+1)] = true
		}
		w.g.mu.Unlock()
		w.nap(5 * time.Second)
		var cursors []storage.EventID
		for _, stream := range streams {
			cursors = append(cursors, storage.EventID{Stream: stream, Index: storage.Index(len(firsts(w.seen(stream))))})
		}
		w.join(cursors)
	case 2: // the client opens a second connection
		w.join(nil)
	}
}

// seen returns the numbers of a stream's events in the order in which they arrived.
func (w *pushWorld) seen(stream storage.StreamID) []int {
	var seen []int
	for _, data := range w.g.arrived("") {
		var e struct {
			Stream storage.StreamID
			N      int
		}
		if json.Unmarshal([]byte(data), &e) == nil && e.N > 0 && e.Stream == stream {
			seen = append(seen, e.N)
		}
	}
	return seen
}

func (w *pushWorld) check(stream storage.StreamID) {
	tail, err := w.memory.Tail(w.t.Context(), w.id, stream)
	commontest.OK(w.t, err)
	seen := w.seen(stream)
	if w.g.faults {
		// If an append got no answer, the whole batch is sent again. Only then an event
		// arrives twice.
		seen = firsts(seen)
	}
	var want []int
	for n := range int(tail.Last) {
		want = append(want, n+1)
	}
	commontest.SameIn(w.t, fmt.Sprintf("stream %q", stream), want, seen)
}

func firsts(all []int) []int {
	var out []int
	for _, n := range all {
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

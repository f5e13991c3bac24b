package relayserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// asylum is a host and a relay function, with a session s1 whose client can be asked. The box is
// awake in generation 3, and has one call, on stream. The asylum is also its fleet, and its
// connection.
type asylum struct {
	t      *testing.T
	store  *storagetest.Counting
	config relayserver.Config
	host   *sessions.Manager
	caller sessions.Caller
	stream storage.StreamID
	conn   string // over which frames of the runner come

	mu      sync.Mutex
	posts   []frametest.Frame
	to      []string // the connections of posts
	closed  bool     // the connection is
	lost    int      // posts that still fail as if it were
	can     fleet.Traits
	tasks   []fleet.Status
	fails   error // of the list of tasks
	refuses error // of a start
	starts  int
	task    fleet.Task // the last that was started
	stopped []string
}

// inTime runs a test in virtual time. timed returns such a test.
func inTime(t *testing.T, test func(t *testing.T, a *asylum)) {
	t.Helper()
	timed(test)(t)
}

func timed(test func(t *testing.T, a *asylum)) func(*testing.T) {
	return func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, newAsylum(t)) })
	}
}

// configOf is the configuration of a host without a fleet.
func configOf(t *testing.T, store storage.Store) relayserver.Config {
	t.Helper()
	launch := func(storage.Box) (map[string]string, error) { return map[string]string{}, nil }
	a := &asylum{closed: true, can: fleet.Traits{Lists: true}, refuses: errors.New("nothing is run here")}
	return relayserver.Config{Store: store, Poster: a, Fleet: a, Sealer: sealerOf(t, 7), Launch: launch}
}

const (
	asylumBox = storage.BoxID("t/s")
	asylumGen = storage.Generation(3)
)

func newAsylum(t *testing.T) *asylum {
	t.Helper()
	a := &asylum{t: t, store: storagetest.NewCounting(storagetest.NewMemory()), stream: storage.NewStreamID(), conn: "c", can: fleet.Traits{Lists: true}}
	a.tasks = []fleet.Status{{ID: "task", Box: string(asylumBox), State: fleet.Running}}
	a.config = configOf(t, a.store)
	a.config.Poster, a.config.Fleet = a, a
	a.rehost()
	a.caller = sessions.Caller{Server: sessions.Server{Name: "s"}, Identity: storage.Identity{Tenant: "t", Principal: "p"}, Transport: storage.HTTP}
	commontest.OK(t, errors.Join(
		a.store.Create(t.Context(), storage.Session{
			ID: "s1", Server: "s", Tenant: "t", Principal: "p", Transport: storage.HTTP, State: storage.Ready, Version: wire.V20251125,
			Init: json.RawMessage(`{"capabilities":{"elicitation":{}}}`), Served: true, Expires: time.Now().Add(7 * 24 * time.Hour),
		}),
		a.store.SaveBox(t.Context(), storage.Box{
			ID: asylumBox, Tenant: "t", Server: "s", State: storage.Awake, Gen: asylumGen, Runner: "r", Task: "task", Conn: "c", Link: 1,
		}),
	))
	return a
}

func (a *asylum) backend() *relayserver.Backend { return relayserver.NewBackend(a.config) }

// rehost makes a host of the configuration as it is now.
func (a *asylum) rehost() { a.host = sessions.New(a.config.Store, a.backend(), sessions.Limits{}) }

func (a *asylum) Post(_ context.Context, conn string, data []byte) error {
	f, err := frametest.Decode(data)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lost--; a.closed || a.lost >= 0 {
		return storage.Closed
	}
	a.posts, a.to = append(a.posts, f), append(a.to, conn)
	return err
}

func (a *asylum) Run(_ context.Context, t fleet.Task) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.starts++
	a.task = t
	return "task-2", a.refuses
}

func (a *asylum) Stop(_ context.Context, id, _ string) error {
	a.stopped = append(a.stopped, id)
	return nil
}

func (a *asylum) Tasks(context.Context) ([]fleet.Status, error) { return a.tasks, a.fails }
func (a *asylum) Traits(string) fleet.Traits                    { return a.can }

func (a *asylum) posted(want frame.Type) []frametest.Frame {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(a.posts), func(f frametest.Frame) bool { return f.Type != want })
}

func (a *asylum) address() storage.Address {
	return storage.Address{Session: "s1", Stream: a.stream, Box: asylumBox, Requests: []json.RawMessage{json.RawMessage("77")}}
}

func (a *asylum) request(params string) string {
	return `{"jsonrpc":"2.0","id":77,"method":"tools/call","params":` + params + `}`
}

// suspension returns the frame that suspends the call with one question for each of
// methods.
func (a *asylum) suspension(round int, first storage.Index, methods ...string) frametest.Frame {
	again := a.request(`{"name":"n","requestState":"s` + string(rune('0'+round)) + `"}`)
	asks := &frame.Asks{Round: round, Within: (6 * time.Hour).Milliseconds(), Len: len(again)}
	item := frame.EventItem{Ticket: a.ticket(), Stream: a.stream, First: first, Asks: asks}
	var payload []byte
	for n, method := range methods {
		id := storage.QuestionID(a.stream, round, n)
		asks.Questions = append(asks.Questions, storage.Question{ID: id, Key: "k" + string(rune('0'+n)), Method: method})
		raw := wire.NewRequest(json.RawMessage(`"`+id+`"`), method, nil)
		item.Lens, payload = append(item.Lens, len(raw)), append(payload, raw...)
	}
	return a.from(frame.TypeEvents, func(f *frametest.Frame) {
		f.Seq, f.Session, f.Items, f.Payload = int64(round), "s1", []frame.EventItem{item}, append(payload, again...)
	})
}

func (a *asylum) from(kind frame.Type, change ...func(*frametest.Frame)) frametest.Frame {
	f := frametest.Frame{Type: kind, Box: asylumBox, Gen: asylumGen, Runner: "r", Link: 1, N: 1}
	for _, c := range change {
		c(&f)
	}
	return f
}

// ticket returns that of the call.
func (a *asylum) ticket() string { return a.config.Sealer.Seal(a.address(), asylumGen) }

// ends has the runner send the end of the call.
func (a *asylum) ends() {
	end := wire.ResultResponse(json.RawMessage("77"), []byte("{}"))
	a.handle(a.from(frame.TypeEvents, func(f *frametest.Frame) {
		f.Seq, f.Session, f.Payload = 1, "s1", end
		f.Items = []frame.EventItem{{Ticket: a.ticket(), Stream: a.stream, First: 1, Final: true, Lens: []int{len(end)}}}
	}))
}

// say gives the relay function a frame of the runner, and raw gives it bytes. They return the answer, if any.
func (a *asylum) say(f frametest.Frame) (frametest.Frame, error) { return a.raw(frametest.Encode(f)) }

func (a *asylum) raw(data []byte) (frametest.Frame, error) {
	reply, err := relayserver.NewHandler(a.config).Frame(a.t.Context(), a.conn, data)
	if err != nil || reply == nil {
		return frametest.Frame{}, err
	}
	return frametest.Decode(reply)
}

// handle is say for a frame that must not fail.
func (a *asylum) handle(f frametest.Frame) frametest.Frame {
	a.t.Helper()
	reply, err := a.say(f)
	if err != nil {
		a.t.Fatalf("%s: %v", f.Type, err)
	}
	return reply
}

func (a *asylum) session() storage.Session {
	a.t.Helper()
	s, _, err := a.store.Load(a.t.Context(), "s1", "")
	commontest.OK(a.t, err)
	return s
}

// box returns the record of the box, and changes changes it.
func (a *asylum) box() storage.Box {
	a.t.Helper()
	b, err := a.store.Box(a.t.Context(), asylumBox)
	commontest.OK(a.t, err)
	return b
}

func (a *asylum) changes(change func(*storage.Box)) {
	a.t.Helper()
	b := a.box()
	change(&b)
	commontest.OK(a.t, a.store.SaveBox(a.t.Context(), b))
}

// waits makes the call wait in the inbox, and waitsIn another call of a session.
func (a *asylum) waits() { a.waitsIn("s1") }

func (a *asylum) waitsIn(session storage.ID) {
	a.t.Helper()
	address := a.address()
	address.Session = session
	_, err := a.store.PutItem(a.t.Context(), storage.Item{
		Box: asylumBox, ID: a.stream, State: storage.Waiting, Address: address, Raw: []byte(a.request("{}")), NotAfter: time.Now().Add(time.Hour), Created: time.Now(),
	})
	commontest.OK(a.t, err)
}

func (a *asylum) tracks(store storage.Store) sessions.Tracker {
	a.t.Helper()
	config := a.config
	config.Store = store
	tracker, err := relayserver.NewBackend(config).Track(a.t.Context(), a.session(), a.stream)
	commontest.OK(a.t, err)
	return tracker
}

func (a *asylum) calls() *sessions.Call {
	a.t.Helper()
	m, err := wire.Parse([]byte(a.request(`{"name":"transfer"}`)))
	commontest.OK(a.t, err)
	call, err := a.host.Accept(a.t.Context(), a.caller, "s1", []wire.Message{m}, false)
	commontest.OK(a.t, err)
	return call
}

func (a *asylum) suspended(methods ...string) storage.Item {
	a.t.Helper()
	if ack := a.handle(a.suspension(1, 1, methods...)); len(ack.Closed) > 0 {
		a.t.Fatalf("the stream was closed: %+v", ack)
	}
	return a.item()
}

func (a *asylum) item() storage.Item {
	a.t.Helper()
	it, err := a.store.Item(a.t.Context(), asylumBox, a.stream)
	commontest.OK(a.t, err)
	return it
}

func (a *asylum) gone() {
	a.t.Helper()
	if it, err := a.store.Item(a.t.Context(), asylumBox, a.stream); !errors.Is(err, storage.NotFound) {
		a.t.Errorf("the item of the call is still there: %s in generation %d, %v", it.State, it.Gen, err)
	}
}

// end returns the message with which the call ended.
func (a *asylum) end() wire.Message {
	a.t.Helper()
	page, err := a.store.Read(a.t.Context(), "s1", a.stream, 0, 100)
	if err != nil || !page.Final() {
		a.t.Fatalf("the call has not ended: %v", err)
	}
	m, err := wire.Parse(page.Events[len(page.Events)-1].Raw)
	commontest.OK(a.t, err)
	return m
}

// answers sends a client's response to question n of a round.
func (a *asylum) answers(round, n int, response string) {
	a.t.Helper()
	commontest.OK(a.t, a.accept(`{"jsonrpc":"2.0","id":"`+storage.QuestionID(a.stream, round, n)+`",`+response+`}`))
}

func (a *asylum) accept(raw string) error {
	m, err := wire.Parse([]byte(raw))
	commontest.OK(a.t, err)
	_, err = a.host.Accept(a.t.Context(), a.caller, "s1", []wire.Message{m}, false)
	return err
}

func (a *asylum) sleeps() {
	a.t.Helper()
	commontest.EqualIn(a.t, "bye was answered with", frame.TypeByeOK, a.handle(a.from(frame.TypeBye)).Type)
}

func (a *asylum) sweep() {
	a.t.Helper()
	commontest.OK(a.t, relayserver.NewSweeper(a.config).Sweep(a.t.Context()))
}

const yes = `"result":{"action":"accept"}`

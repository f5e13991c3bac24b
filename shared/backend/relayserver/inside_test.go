package relayserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/intercept"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// home is a program with the box t/s inside. The box is also its fleet and its guard.
type home struct {
	t      *testing.T
	store  *storagetest.Memory
	config relayserver.Config
	in     *relayserver.Inside
	host   *relayserver.Backend

	mu       sync.Mutex
	writes   []string
	link     frame.Link
	ticket   string        // of the last delivery
	takes    time.Duration // a call
	panics   bool          // in Deliver
	panicked chan struct{}
	runs     int
	heard    []string // what was delivered without requests
	busy     int
	used     time.Time
	ended    chan fleet.Status

	legacySSE bool          // the client has one stream for all events
	gate      chan struct{} // if not nil, no Append begins before it is closed
	appending atomic.Int64  // those that wait for it
}

func newHome(t *testing.T) *home {
	t.Helper()
	h := &home{t: t, store: storagetest.NewMemory(), in: relayserver.NewInside(nil), used: time.Now(), ended: make(chan fleet.Status, 10)}
	h.config = configOf(t, intercept.New(h.store, func(ctx context.Context, c *intercept.Call, do func(context.Context) error) error {
		if c.Kind == intercept.Write {
			h.mu.Lock()
			h.writes = append(h.writes, c.Method)
			h.mu.Unlock()
		}
		if c.Method == "Append" && h.gate != nil {
			h.appending.Add(1)
			<-h.gate
		}
		return do(ctx)
	}))
	h.config.Fleet, h.config.Inside, h.config.IsInside = h, h.in, func(server string) bool { return server == "s" }
	h.host = relayserver.NewBackend(h.config)
	h.in.Serve(relayserver.NewHandler(h.config))
	commontest.OK(t, h.store.Create(t.Context(), storage.Session{ID: "one", Tenant: "t", Server: "s", State: storage.Ready, Expires: time.Now().Add(time.Hour)}))
	return h
}

// wrote returns the writes since it was called last.
func (h *home) wrote() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	writes := h.writes
	h.writes = nil
	return writes
}

func (h *home) call(n int) wire.Message {
	h.t.Helper()
	stream := storage.StreamID(fmt.Sprint("call", n))
	id := fmt.Appendf(nil, "%d", n)
	_, b, err := h.store.Load(h.t.Context(), "one", "t/s")
	commontest.OK(h.t, err)
	tracker, err := h.host.Deliver(h.t.Context(), sessions.Delivery{
		Address: storage.Address{Session: "one", Stream: stream, Box: "t/s", Requests: []json.RawMessage{id}, LegacySSE: h.legacySSE}, Client: storage.Session{ID: "one", Tenant: "t"},
		Server: "s", Raw: wire.NewRequest(id, wire.MethodToolsCall, []byte(`{"name":"x"}`)),
	}, b)
	commontest.OK(h.t, err)
	for until := time.Now().Add(1100 * time.Millisecond); ; until = time.Now().Add(time.Second) {
		page, err := h.store.Wait(h.t.Context(), "one", stream, 0, until)
		commontest.OK(h.t, err)
		if len(page.Events) > 0 {
			m, _ := wire.Parse(page.Events[0].Raw)
			return m
		}
		if _, err := tracker.Check(h.t.Context()); err != nil {
			h.t.Fatal(err)
		}
	}
}

// # The fleet

func (h *home) Run(_ context.Context, t fleet.Task) (string, error) {
	h.runs++
	id := fmt.Sprintf("%s/%d", t.Place, h.runs)
	go func() {
		h.panicked = make(chan struct{})
		link, err := h.in.Join(frame.Joining{
			Box: storage.BoxID(t.Env[frame.EnvBox]), Token: t.Env[frame.EnvToken], Executor: h, Idle: time.Minute, Flush: time.Second, Guard: h,
		})
		exit := 1
		if err == nil {
			h.mu.Lock()
			h.link = link
			h.mu.Unlock()
			if err = link.Run(h.t.Context()); err == nil {
				exit = 0
			}
		}
		h.in.Left(t.Env)
		h.ended <- fleet.Status{ID: id, ClientToken: t.ClientToken, Box: t.Box, Server: t.Server, State: fleet.Stopped, ExitCode: exit, Stopped: time.Now()}
	}()
	return id, nil
}

func (h *home) Stop(context.Context, string, string) error              { return nil }
func (h *home) Tasks(context.Context) (tasks []fleet.Status, err error) { return nil, nil }
func (h *home) Traits(string) fleet.Traits                              { return fleet.Traits{Lists: true} }

// # The guard

func (h *home) Go(do func()) {
	go func() {
		defer h.Catch()
		do()
	}()
}

func (h *home) Catch() {
	if recover() != nil {
		close(h.panicked)
	}
}

func (h *home) Panicked() <-chan struct{} { return h.panicked }

// # The box

func (h *home) Deliver(d frame.Delivery) {
	h.mu.Lock()
	panics, takes := h.panics, h.takes
	h.ticket = d.Ticket
	if !d.HasRequests {
		h.heard = append(h.heard, string(d.Raw))
		h.mu.Unlock()
		return
	}
	h.busy++
	h.mu.Unlock()
	if panics {
		panic("the test lets the box panic")
	}
	time.AfterFunc(takes, func() {
		m, _ := wire.Parse(d.Raw)
		h.link.Event(frame.Event{Session: d.Session, Stream: d.ID, Ticket: d.Ticket, Raw: wire.ResultResponse(m.ID, []byte(`{}`)), Final: true})
		h.mu.Lock()
		defer h.mu.Unlock()
		h.busy--
		h.used = time.Now()
	})
}

func (h *home) IdleSince() (time.Time, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.used, h.busy == 0
}

func (h *home) Answer(storage.ID, string, []byte)        {}
func (h *home) CloseStream(storage.ID, storage.StreamID) {}
func (h *home) StopSession(storage.ID)                   {}
func (h *home) Halt(storage.ID, string, time.Duration)   {}
func (h *home) Questions() map[storage.ID][]string       { return nil }

// A call of a box in this program costs one write, and two if it wakes the box. Only a long call
// has an item.
func TestInsideCostsOneWriteACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHome(t)
		for n, takes := range []time.Duration{0, 0, 3 * time.Second} {
			h.takes = takes
			h.wrote()
			if m := h.call(n); m.Error != nil {
				t.Fatalf("call %d ended with %s", n, m.Raw)
			}
			synctest.Wait()
			want := [][]string{{"SaveBox", "Append"}, {"Append"}, {"PutItem", "Append", "DeleteItem"}}[n]
			commontest.SameIn(t, fmt.Sprintf("writes of call %d", n), want, h.wrote())
		}
		for _, result := range []string{`{"n":1}`, `{"n":1}`, `{"n":2}`} { // each of a fresh process
			h.link.Status(frame.StatusReport{Session: "one", Ticket: h.ticket, Detail: wire.V20251125, Handshake: []byte(result)})
			synctest.Wait()
		}
		commontest.SameIn(t, "writes of three handshakes, two of them alike", []string{"SaveHandshake", "SaveHandshake"}, h.wrote())
		commontest.EqualIn(t, "the box ended with", 0, (<-h.ended).ExitCode)
		commontest.SameIn(t, "to sleep takes", []string{"SaveBox"}, h.wrote())
		h.call(9)
		commontest.EqualIn(t, "starts", 2, h.runs)
	})
}

// A panic of the box in the goroutine of a caller ends the box. What it owed ends with an unknown
// outcome, and the next call wakes the box anew.
func TestInsideAPanicInACallEndsTheBox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHome(t)
		h.call(1)
		h.mu.Lock()
		h.panics = true
		h.mu.Unlock()
		go func() {
			end := <-h.ended
			h.mu.Lock()
			h.panics, h.busy = false, 0
			h.mu.Unlock()
			commontest.Check(t, relayserver.NewSweeper(h.config).Stopped(t.Context(), end))
		}()
		commontest.EqualIn(t, "the call ended with", fmt.Sprint(wire.CodeOutcomeUnknown), string(wire.Lookup(h.call(2).Error, "code")))
		if m := h.call(3); m.Error != nil || h.runs != 2 {
			t.Errorf("the next call ended with %s, after %d starts", m.Raw, h.runs)
		}
	})
}

// answerTo delivers an answer of a client to a process that sleeps with its memory.
func answerTo(t *testing.T, k *relayserver.Backend, b storage.Box) error {
	t.Helper()
	b.ID = "t/s"
	_, err := k.Deliver(t.Context(), sessions.Delivery{
		Address: storage.Address{Session: "one", Stream: "answer", Box: b.ID}, Client: storage.Session{ID: "one", Tenant: "t"}, Server: "s",
		Raw: []byte(`{"jsonrpc":"2.0","id":"q-1","result":{}}`), Wakes: true,
	}, b)
	return err
}

func TestInsideAnAnswerWakesABoxThatSleeps(t *testing.T) {
	h := newHome(t)
	commontest.OK(t, answerTo(t, h.host, storage.Box{}))
	commontest.Eventually(t, "the box gets the answer", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.heard) == 1 && strings.Contains(h.heard[0], "q-1")
	})
}

// The box of another program comes up in its time, or the client hears that it does not.
func TestAnAnswerWaitsForTheBoxThatItHasWoken(t *testing.T) {
	for name, within := range map[string]time.Duration{"in time": 5 * time.Second, "too late": time.Minute} {
		t.Run(name, timed(func(t *testing.T, a *asylum) {
			a.changes(func(b *storage.Box) {
				b.State, b.Owner, b.Until, b.Conn = storage.Starting, "another", time.Now().Add(2*time.Minute), ""
			})
			time.AfterFunc(within, func() { a.changes(func(b *storage.Box) { b.State, b.Conn = storage.Awake, "c" }) })
			err := answerTo(t, a.backend(), a.box())
			if late := within > 20*time.Second; late != errors.Is(err, storage.Unavailable) || late != (len(a.posts) == 0) {
				t.Errorf("%v, %d frames", err, len(a.posts))
			}
			time.Sleep(within)
		}))
	}
}

// A server that is not to be inside has its box behind the relay.
func TestInsideLeavesOthersToTheRelay(t *testing.T) {
	h := newHome(t)
	_, err := h.host.Deliver(t.Context(), callOf("t", "other"), storage.Box{ID: "t/other"})
	if b, _ := h.store.Box(t.Context(), "t/other"); err != nil || b.State != storage.Starting || b.Place != "" {
		t.Errorf("the record is %+v (%v)", b, err)
	}
}

// The ends of many calls in one session do not wait for each other, so that they share an
// fsync. If the session has one stream for all events, its batches are known by their order,
// so none is taken for the repeat of a later one.
func TestInsideEndsOfOneSessionAreWrittenTogether(t *testing.T) {
	const calls = 16
	for what, legacy := range map[string]bool{"a stream each": false, "one stream": true} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHome(t)
				h.legacySSE = legacy
				h.call(0) // the box is awake
				h.takes, h.gate = time.Second, make(chan struct{})
				var all sync.WaitGroup
				for n := range calls {
					all.Go(func() {
						if m := h.call(1 + n); m.Error != nil {
							t.Errorf("call %d ended with %s", n, m.Raw)
						}
					})
				}
				time.Sleep(1500 * time.Millisecond)
				if n := h.appending.Load(); n < calls-1 && !legacy {
					t.Errorf("%d ends are being written, want %d", n, calls)
				}
				close(h.gate)
				all.Wait()
				<-h.ended
				page, err := h.store.Read(t.Context(), "one", storage.LegacySSE, 0, 2*calls)
				commontest.OK(t, err)
				if legacy {
					commontest.EqualIn(t, "ends in the stream", 1+calls, len(page.Events))
				}
			})
		})
	}
}

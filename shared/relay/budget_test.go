package relay_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
	"github.com/dormouse-mcp/dormouse/shared/relay/frametest"
	"github.com/dormouse-mcp/dormouse/shared/relay/relayhost"
	"github.com/dormouse-mcp/dormouse/shared/relay/runner"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/sessiontest"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// These tests measure the cost of each operation in round trips to the store and in
// messages of the relay. The host, relay function and runner are real, on a network
// without faults. Reads that wait are counted apart. docs/costs.md has the figures.

// counted is a host, a relay function and a runner whose costs are counted.
type counted struct {
	store *sessiontest.Counting
	host  *host.Host
	relay *relayhost.Handler

	mu     sync.Mutex
	up     map[frame.Type]int // frames of the runner
	down   map[frame.Type]int // answers and posts
	conn   *countedConn
	runner *runner.Runner
	life   sync.WaitGroup
	work   sync.WaitGroup
	busy   int
	idle   time.Time
	posted int // messages to the client

	runnerLog *slog.Logger // of the runner, nil for none
}

type costs struct {
	Reads, Writes int
	Up, Down      map[frame.Type]int
}

func newCounted(t *testing.T) *counted { return countedOn(t, sessiontest.NewMemory()) }

// countedOn makes a counted over store, and newCounted over one in memory.
func countedOn(t *testing.T, store session.Store, change ...func(*relayhost.Config)) *counted {
	sealer, err := relayhost.NewSealer(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	c := &counted{store: sessiontest.NewCounting(store), idle: time.Now()}
	config := relayhost.Config{
		Store: c.store, Sealer: sealer, Poster: c, Clients: clientsOf{c}, Fleet: c,
		Launch: func(session.Box) (map[string]string, error) { return map[string]string{}, nil },
	}
	for _, f := range change {
		f(&config)
	}
	c.host = host.New(c.store, relayhost.NewBackend(config), host.Limits{})
	c.relay = relayhost.NewHandler(config)
	c.reset()
	return c
}

func (c *counted) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.store.Reset()
	c.up, c.down = map[frame.Type]int{}, map[frame.Type]int{}
}

func (c *counted) costs() costs {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.store.Counts()
	return costs{Reads: n.Reads, Writes: n.Writes, Up: maps.Clone(c.up), Down: maps.Clone(c.down)}
}

func (c *counted) count(down bool, data []byte) {
	f, err := frametest.Decode(data)
	if err != nil {
		panic(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if down {
		c.down[f.Type]++
	} else {
		c.up[f.Type]++
	}
}

type countedConn struct {
	c      *counted
	in     chan []byte
	closed chan struct{}
	once   sync.Once
}

func (k *countedConn) Send(data []byte) error {
	k.c.count(false, data)
	k.c.work.Go(func() {
		reply, err := k.c.relay.Frame(context.Background(), "the-connection", data)
		if err != nil {
			panic(err)
		}
		if reply != nil {
			k.c.count(true, reply)
			k.in <- reply
		}
	})
	return nil
}

func (k *countedConn) Receive() ([]byte, error) {
	select {
	case data := <-k.in:
		return data, nil
	case <-k.closed:
		return nil, io.EOF
	}
}

func (k *countedConn) Close(string) error {
	k.once.Do(func() { close(k.closed) })
	return nil
}

// Post implements relay.Poster.
func (c *counted) Post(_ context.Context, _ string, data []byte) error {
	c.count(true, data)
	c.conn.in <- data
	return nil
}

// Run implements fleet.Fleet.
func (c *counted) Run(ctx context.Context, t fleet.Task) (string, error) {
	gen, err := strconv.ParseInt(t.Env[frame.EnvGeneration], 10, 64)
	if err != nil {
		return "", err
	}
	c.conn = &countedConn{c: c, in: make(chan []byte, 1000), closed: make(chan struct{})}
	c.runner = runner.New(runner.Config{
		Box: session.BoxID(t.Box), Gen: session.Generation(gen), Token: t.Env[frame.EnvToken], Task: "task", Executor: c, Log: c.runnerLog,
		Dial: func(context.Context, string, http.Header) (runner.Conn, error) { return c.conn, nil },
	})
	own := context.WithoutCancel(ctx)
	c.life.Go(func() { _ = c.runner.Run(own) })
	return "task", nil
}

func (c *counted) Stop(context.Context, string, string) error    { return nil }
func (c *counted) Tasks(context.Context) ([]fleet.Status, error) { return nil, nil }

func (*counted) Traits(string) fleet.Traits {
	return fleet.Traits{Stops: true, Lists: true}
}

// Deliver implements relay.Executor. With {"sleep": ms, "progress": n} in the params it
// waits and sends progress before it answers.
func (c *counted) Deliver(d runner.Delivery) {
	m, err := wire.Parse(d.Raw)
	if err != nil || m.Kind != wire.Request {
		return
	}
	c.mu.Lock()
	c.busy++
	c.mu.Unlock()
	c.work.Go(func() {
		if m.Method == wire.MethodInitialize {
			c.runner.Status(runner.StatusReport{
				Session: d.Session, Ticket: d.Ticket, Detail: wire.V20251125, Handshake: json.RawMessage(handshake),
			})
		}
		var do struct{ Sleep, Progress int }
		_ = json.Unmarshal(m.Params, &do)
		for range do.Progress {
			c.runner.Event(runner.Event{Session: d.Session, Stream: d.ID, Ticket: d.Ticket, Raw: []byte(`{"progress":1}`)})
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Duration(do.Sleep) * time.Millisecond)
		c.mu.Lock()
		c.busy--
		c.idle = time.Now()
		c.mu.Unlock()
		c.runner.Event(runner.Event{
			Session: d.Session, Stream: d.ID, Ticket: d.Ticket, Final: true, Raw: wire.ResultResponse(m.ID, json.RawMessage(resultOf(m))),
		})
	})
}

func resultOf(m wire.Message) string {
	if m.Method == wire.MethodInitialize {
		return handshake
	}
	return "{}"
}

func (c *counted) Answer(session.ID, string, []byte)        {}
func (c *counted) CloseStream(session.ID, session.StreamID) {}
func (*counted) Halt(session.ID, string, time.Duration)     {}

func (c *counted) StopSession(session.ID)             {}
func (c *counted) Questions() map[session.ID][]string { return nil }
func (c *counted) IdleSince() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.idle, c.busy == 0
}

var caller = host.Caller{
	Server: host.Server{Name: "s", Digest: "digest", Record: true}, Tenant: "t", Principal: "p", Transport: session.HTTP,
}

// handshake is the server's answer to initialize.
const handshake = `{"protocolVersion":"2025-11-25","capabilities":{"logging":{}}}`

// open opens a session of a server that has a handshake record.
func (c *counted) open(t *testing.T) session.ID {
	t.Helper()
	if err := c.store.SaveHandshake(t.Context(), session.Handshake{
		Digest: session.RecordFor("t", "digest"), Version: wire.V20251125, Result: json.RawMessage(handshake),
	}); err != nil {
		t.Fatal(err)
	}
	c.reset()
	s, call, err := c.host.Initialize(t.Context(), caller, "", parse(t, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := call.Next(t.Context(), time.Now()); err != nil || !call.Done() {
		t.Fatalf("initialize: done %v, %v", call.Done(), err)
	}
	return s.ID
}

func parse(t *testing.T, raw string) wire.Message {
	t.Helper()
	m, err := wire.Parse([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (c *counted) send(t *testing.T, id session.ID, raw string) {
	t.Helper()
	call, err := c.host.Accept(t.Context(), caller, id, []wire.Message{parse(t, raw)}, false)
	if err != nil {
		t.Fatal(err)
	}
	for call != nil && !call.Done() {
		if _, err := call.Next(t.Context(), time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Wait()
}

const initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`

func callWith(params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":%s}`, params)
}

// budget runs an operation in a world of its own and compares its cost with want.
func budget(t *testing.T, want costs, prepare, operation func(t *testing.T, c *counted, id session.ID)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCounted(t)
		id := c.open(t)
		prepare(t, c, id)
		c.reset()
		operation(t, c, id)
		if diff := cmp.Diff(want, c.costs()); diff != "" {
			t.Errorf("costs (-want +got):\n%s", diff)
		}
		// Wait for the end of everything in this world.
		time.Sleep(10 * time.Minute)
		c.life.Wait()
		c.work.Wait()
	})
}

func awake(t *testing.T, c *counted, id session.ID) {
	c.send(t, id, initialized)
	c.send(t, id, callWith(`{}`))
	time.Sleep(5 * time.Second)
}

func asleep(t *testing.T, c *counted, id session.ID) {
	awake(t, c, id)
	time.Sleep(10 * time.Minute)
}

func ready(t *testing.T, c *counted, id session.ID) { c.send(t, id, initialized) }
func fresh(*testing.T, *counted, session.ID)        {}

type frames = map[frame.Type]int

func TestBudgetOfACallOnAnAwakeBox(t *testing.T) {
	want := costs{Reads: 1, Writes: 1, Up: frames{frame.TypeEvents: 1}, Down: frames{frame.TypeDeliver: 1, frame.TypeAck: 1}}
	budget(t, want, awake, func(t *testing.T, c *counted, id session.ID) { c.send(t, id, callWith(`{"sleep":300}`)) })
}

func TestBudgetOfASlowCallOnAnAwakeBox(t *testing.T) {
	// The relay function writes the taken mark and the events, and removes the mark. The
	// waiting function looks twice.
	want := costs{Reads: 3, Writes: 3, Up: frames{frame.TypeTaken: 1, frame.TypeEvents: 1}, Down: frames{frame.TypeDeliver: 1, frame.TypeAck: 1}}
	budget(t, want, awake, func(t *testing.T, c *counted, id session.ID) { c.send(t, id, callWith(`{"sleep":5000}`)) })
}

func TestBudgetOfACallWithProgress(t *testing.T) {
	want := costs{Reads: 1, Writes: 4, Up: frames{frame.TypeEvents: 2}, Down: frames{frame.TypeDeliver: 1, frame.TypeAck: 2}}
	budget(t, want, awake, func(t *testing.T, c *counted, id session.ID) { c.send(t, id, callWith(`{"progress":1}`)) })
}

func TestBudgetOfAColdCall(t *testing.T) {
	want := costs{
		Reads: 7, Writes: 6, // the very first call of a session costs one write more
		Up:   frames{frame.TypeHello: 1, frame.TypePull: 1, frame.TypeEvents: 1},
		Down: frames{frame.TypeWelcome: 1, frame.TypePulled: 1, frame.TypeDeliver: 1, frame.TypeAck: 1},
	}
	budget(t, want, asleep, func(t *testing.T, c *counted, id session.ID) { c.send(t, id, callWith(`{}`)) })
}

func TestBudgetOfInitializeFromTheRecord(t *testing.T) {
	budget(t, costs{Reads: 1, Writes: 1, Up: frames{}, Down: frames{}}, fresh, func(t *testing.T, c *counted, _ session.ID) { c.open(t) })
}

func TestBudgetOfInitialized(t *testing.T) {
	budget(t, costs{Reads: 1, Writes: 1, Up: frames{}, Down: frames{}}, fresh, ready)
}

func TestBudgetOfAPing(t *testing.T) {
	budget(t, costs{Reads: 1, Up: frames{}, Down: frames{}}, ready, func(t *testing.T, c *counted, id session.ID) {
		c.send(t, id, `{"jsonrpc":"2.0","id":2,"method":"ping"}`)
	})
}

func TestBudgetOfANotification(t *testing.T) {
	budget(t, costs{Reads: 1, Up: frames{}, Down: frames{frame.TypeDeliver: 1}}, awake, func(t *testing.T, c *counted, id session.ID) {
		c.send(t, id, `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
	})
}

func TestBudgetOfADayOfSilence(t *testing.T) {
	budget(t, costs{Up: frames{}, Down: frames{}}, func(t *testing.T, c *counted, id session.ID) {
		awake(t, c, id)
		time.Sleep(10 * time.Minute) // the box falls asleep
	}, func(*testing.T, *counted, session.ID) { time.Sleep(24 * time.Hour) })
}

func TestBudgetOfFallingAsleep(t *testing.T) {
	want := costs{Reads: 1, Writes: 1, Up: frames{frame.TypeBye: 1}, Down: frames{frame.TypeByeOK: 1}}
	budget(t, want, awake, func(*testing.T, *counted, session.ID) { time.Sleep(10 * time.Minute) })
}

func TestBudgetOfEnding(t *testing.T) {
	want := costs{Reads: 1, Writes: 1, Up: frames{}, Down: frames{frame.TypeStop: 1}}
	budget(t, want, awake, func(t *testing.T, c *counted, id session.ID) {
		if err := c.host.End(t.Context(), caller, id); err != nil {
			t.Fatal(err)
		}
	})
}

func TestBudgetOfAListen(t *testing.T) {
	want := costs{Reads: 1, Writes: 1, Up: frames{}, Down: frames{}}
	budget(t, want, ready, func(t *testing.T, c *counted, id session.ID) {
		call, err := c.host.Listen(t.Context(), caller, id, "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := call.Next(t.Context(), time.Now().Add(call.Hold())); err != nil {
			t.Fatal(err)
		}
	})
}

func TestBudgetOfAPollOfACall(t *testing.T) {
	want := costs{Reads: 3, Up: frames{}, Down: frames{}}
	budget(t, want, awake, func(t *testing.T, c *counted, id session.ID) {
		call, err := c.host.Accept(t.Context(), caller, id, []wire.Message{parse(t, callWith(`{"sleep":60000}`))}, false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := call.Next(t.Context(), time.Now().Add(5*time.Second)); err != nil {
			t.Fatal(err)
		}
		c.reset()
		poll, err := c.host.Resume(t.Context(), caller, id, call.Cursor().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := poll.Next(t.Context(), time.Now().Add(5*time.Second)); err != nil {
			t.Fatal(err)
		}
	})
}

package relay_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// counted is a host, a relay function and a runner whose costs are counted: round trips to
// the store, and messages of the relay. All three are real. Reads that wait are counted
// apart. docs/costs.md has the figures. counted is also the box, which has one process.
type counted struct {
	line
	store *storagetest.Counting
	host  *sessions.Manager

	mu       sync.Mutex
	up, down frames // from the runner and to it
	runner   *runner.Runner
	life     sync.WaitGroup // of runners
	starts   int
	ended    error // the last of them
	busy     int
	idle     time.Time
	ticket   string         // of the newest request
	executed map[string]int // calls by label
	asked    map[storage.ID]map[string]chan []byte
}

type frames = map[frame.Type]int

type costs struct {
	Reads, Writes int
	Up, Down      frames
}

func countedOn(t *testing.T, store storage.Store) *counted {
	c := &counted{store: storagetest.NewCounting(store), idle: time.Now(), executed: map[string]int{}, asked: map[storage.ID]map[string]chan []byte{}}
	sealer, err := relayserver.NewSealer([]byte(strings.Repeat("k", 32)))
	commontest.OK(t, err)
	config := relayserver.Config{
		Store: c.store, Sealer: sealer, Poster: c, Fleet: c, Clients: readers{},
		Launch: func(storage.Box) (map[string]string, error) { return map[string]string{}, nil },
	}
	c.host = sessions.New(c.store, relayserver.NewBackend(config), sessions.Limits{})
	c.relay, c.fate = relayserver.NewHandler(config), c.count
	c.reset()
	return c
}

func (c *counted) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.store.Reset()
	c.up, c.down = frames{}, frames{}
}

func (c *counted) costs() costs {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.store.Counts()
	return costs{Reads: n.Reads, Writes: n.Writes, Up: maps.Clone(c.up), Down: maps.Clone(c.down)}
}

func (c *counted) count(down bool, data []byte) fate {
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
	return arrives
}

func (c *counted) Run(ctx context.Context, t fleet.Task) (string, error) {
	gen, err := strconv.ParseInt(t.Env[frame.EnvGeneration], 10, 64)
	config := runner.Config{
		Box: storage.BoxID(t.Box), Gen: storage.Generation(gen), Token: t.Env[frame.EnvToken], Pass: t.Env[frame.EnvPass], Task: "task",
		Executor: c, Dial: c.dial,
	}
	c.starts++
	r := runner.New(config)
	c.runner = r
	c.life.Go(func() {
		own, cancel := context.WithTimeout(context.WithoutCancel(ctx), 100*time.Hour) // it ends by itself before that
		defer cancel()
		c.ended = r.Run(own)
	})
	return "task", err
}

// No box is lost.
func (*counted) Stop(context.Context, string, string) error    { return nil }
func (*counted) Tasks(context.Context) ([]fleet.Status, error) { return nil, nil }
func (*counted) Traits(string) fleet.Traits                    { return fleet.Traits{Lists: true} }

// quiet waits until the box sleeps and nothing is under way.
func (c *counted) quiet() {
	c.life.Wait()
	c.work.Wait()
}

// does is what a call has the box do before it answers. Without a label the answer is {}.
type does struct {
	Label           string
	Sleep           int  // milliseconds, before each message
	Progress        int  // messages
	Ask             bool // the client
	Argument, Bytes int  // bytes of padding, in the call and in its result
	Pad             string
}

// done is the result of a call with a label.
type done struct {
	Label    string
	Argument int // bytes that arrived
	Answer   string
	Pad      string
}

// padding returns a text of n bytes, with characters of every length.
func padding(n int) string { return strings.Repeat("aé€😀", n/10) }

func (c *counted) Deliver(d frame.Deliver) {
	m, err := wire.Parse(d.Raw)
	if err != nil || m.Kind != wire.Request {
		return
	}
	var do does
	_ = json.Unmarshal(m.Params, &do)
	c.mu.Lock()
	c.busy++
	c.ticket = d.Ticket
	c.executed[do.Label]++
	c.mu.Unlock()
	c.work.Go(func() {
		result := "{}"
		switch {
		case m.Method == wire.MethodInitialize:
			result = handshake
			c.runner.Status(frame.Status{Session: d.Session, Ticket: d.Ticket, Detail: wire.V20251125, Payload: json.RawMessage(handshake)})
		case do.Label != "":
			c.say(d, storage.Standalone, `{"jsonrpc":"2.0","method":"notifications/message","params":{"label":%q}}`, do.Label)
			result = c.execute(d, do)
		default:
			c.execute(d, do)
		}
		c.mu.Lock()
		c.busy--
		c.idle = time.Now()
		c.mu.Unlock()
		c.runner.Event(frame.Event{
			Session: d.Session, Stream: d.ID, Ticket: d.Ticket, Final: true, Raw: wire.ResultResponse(m.ID, json.RawMessage(result)),
		})
	})
}

func (c *counted) say(d frame.Deliver, stream storage.StreamID, format string, args ...any) {
	c.runner.Event(frame.Event{Session: d.Session, Stream: stream, Ticket: d.Ticket, Raw: fmt.Appendf(nil, format, args...)})
}

func (c *counted) execute(d frame.Deliver, do does) string {
	for n := range do.Progress {
		c.say(d, d.ID, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"n":%d}}`, n+1)
		time.Sleep(10 * time.Millisecond)
	}
	r := done{Label: do.Label, Argument: len(do.Pad), Pad: padding(do.Bytes)}
	if do.Ask {
		r.Answer = string(c.ask(d, "q-"+do.Label))
	}
	time.Sleep(time.Duration(do.Sleep) * time.Millisecond)
	result, _ := json.Marshal(r)
	return string(result)
}

func (c *counted) ask(d frame.Deliver, question string) []byte {
	heard := make(chan []byte, 100) // an answer may come again
	c.mu.Lock()
	if c.asked[d.Session] == nil {
		c.asked[d.Session] = map[string]chan []byte{}
	}
	c.asked[d.Session][question] = heard
	c.mu.Unlock()
	c.say(d, d.ID, `{"jsonrpc":"2.0","id":%q,"method":"elicitation/create","params":{}}`, question)
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.asked[d.Session], question)
	}()
	select {
	case answer := <-heard:
		return answer
	case <-time.After(time.Hour):
		return nil
	}
}

func (c *counted) Answer(id storage.ID, question string, raw []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if heard := c.asked[id][question]; heard != nil {
		heard <- slices.Clone(raw)
	}
}

func (c *counted) Questions() map[storage.ID][]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	open := map[storage.ID][]string{}
	for id, questions := range c.asked {
		if len(questions) > 0 {
			open[id] = slices.Sorted(maps.Keys(questions))
		}
	}
	return open
}

// A client of this world stops nothing, and cancels nothing.
func (*counted) CloseStream(storage.ID, storage.StreamID) {}
func (*counted) Halt(frame.Halt)                          {}
func (*counted) StopSession(storage.ID)                   {}

// lists reports what a fresh process of a session lists.
func (c *counted) lists(id storage.ID) {
	c.mu.Lock()
	ticket := c.ticket
	c.mu.Unlock()
	c.runner.Status(frame.Status{Session: id, Ticket: ticket, Lists: "kind", Payload: json.RawMessage(`{"tools/list":"hash"}`)})
	time.Sleep(time.Second)
}

func (c *counted) IdleSince() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.idle, c.busy == 0
}

// # Clients

func (c *counted) open(t *testing.T) storage.ID {
	t.Helper()
	id := initialize(t, c.host)
	c.send(t, id, initialized)
	return id
}

func (c *counted) accept(t *testing.T, id storage.ID, raw string) *sessions.Call {
	t.Helper()
	call, err := c.host.Accept(t.Context(), caller, id, []wire.Message{parse(t, raw)}, false)
	commontest.OK(t, err)
	return call
}

func (c *counted) send(t *testing.T, id storage.ID, raw string) {
	t.Helper()
	finish(t, c.accept(t, id, raw))
}

func callWith(params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":%s}`, params)
}

// call makes a call with a label, answers its question, and checks all that comes: progress
// in order, the question, and the result at the end.
func (c *counted) call(t *testing.T, id storage.ID, do does) (r done) {
	t.Helper()
	do.Pad = padding(do.Argument)
	params, err := json.Marshal(do)
	commontest.OK(t, err)
	call := c.accept(t, id, callWith(string(params)))
	var events []storage.Event
	for until := time.Now().Add(20 * time.Minute); !call.Done() && time.Now().Before(until); {
		more, err := call.Next(t.Context(), time.Now().Add(time.Minute))
		commontest.OK(t, err)
		for _, e := range more {
			if m := parse(t, string(e.Raw)); m.Kind == wire.Request {
				c.accept(t, id, `{"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":{"heard":true}}`)
			}
		}
		events = append(events, more...)
	}
	progress := 0
	for i, e := range events {
		last := i == len(events)-1
		if e.Index != storage.Index(i+1) || e.Final != last {
			t.Errorf("event %d of call %s has index %d, final %v: %.80s", i+1, do.Label, e.Index, e.Final, e.Raw)
		}
		if n := wire.Lookup(e.Raw, "params", "n"); n != nil {
			progress++
			commontest.EqualIn(t, "progress of call "+do.Label, strconv.Itoa(progress), string(n))
		}
		if last && json.Unmarshal(wire.Lookup(e.Raw, "result"), &r) != nil {
			t.Errorf("call %s ended in %.200s", do.Label, e.Raw)
		}
	}
	if progress != do.Progress || r.Label != do.Label || r.Argument != len(do.Pad) || r.Pad != padding(do.Bytes) || do.Ask != (r.Answer != "") {
		t.Errorf("call %s: %d of %d times progress, result %.200q", do.Label, progress, do.Progress, fmt.Sprint(r))
	}
	return r
}

// readers are WebSocket clients that take everything.
type readers struct{}

func (readers) Post(context.Context, string, []byte) error { return nil }
func (readers) Close(context.Context, string) error        { return nil }

// overSocket opens a session over a connection and lets the box wake for it.
func (c *counted) overSocket(t *testing.T, conn string) (sessions.Caller, storage.ID) {
	t.Helper()
	caller, id := c.connect(t, conn, "")
	_, _, err := c.host.Initialize(t.Context(), caller, id, parse(t, initializing))
	commontest.OK(t, err)
	c.message(t, caller, id, initialized)
	c.message(t, caller, id, callWith(`{}`))
	time.Sleep(time.Minute) // a connection that is younger may still come up
	return caller, id
}

// message does with a message what the socket function does. That also reads the record of
// its connection, if the process has not read it before.
func (c *counted) message(t *testing.T, caller sessions.Caller, id storage.ID, raw string) {
	t.Helper()
	_, err := c.host.Connection(t.Context(), caller.Conn)
	commontest.OK(t, err)
	call, err := c.host.Accept(t.Context(), caller, id, []wire.Message{parse(t, raw)}, false)
	if err == nil && call != nil {
		_, err = call.Next(t.Context(), time.Now())
	}
	commontest.OK(t, err)
}

package relay_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
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
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// cutWorld is a host, a relay function, a runner and a box with one process for each
// session, over a cutWire. Everything is real except the gateway and the execution in the
// box.
type cutWorld struct {
	healthy
	t      *testing.T
	wire   *cutWire
	memory *storagetest.Memory
	config relayserver.Config
	host   *sessions.Manager
	box    *cutBox
	seed   uint64
	set    func(*runner.Config) // nil for the defaults
	runs   sync.WaitGroup

	patience time.Duration // a box that is not asleep by then has failed the test

	mu      sync.Mutex
	started int
	runErr  error
	quick   map[time.Duration]int // how many calls without Wait took each time
}

func newCutWorld(t *testing.T, point cutPoint, seed uint64) *cutWorld {
	t.Helper()
	w := &cutWorld{t: t, memory: storagetest.NewMemory(), seed: seed, quick: map[time.Duration]int{}, patience: 2 * time.Hour}
	w.wire = newCutWire(t, point, seed)
	w.box = newCutBox(t)
	w.config = hostOver(t, w.memory, w.wire, w)
	w.wire.handler = relayserver.NewHandler(w.config)
	w.host = sessions.New(w.memory, relayserver.NewBackend(w.config), sessions.Limits{})
	onRecord(t, w.memory, "t", handshake)
	return w
}

// close waits for the box to sleep and ends the world.
func (w *cutWorld) close() {
	w.runs.Wait()
	w.box.work.Wait()
	w.wire.close()
}

// Run implements fleet.Fleet.
func (w *cutWorld) Run(_ context.Context, task fleet.Task) (string, error) {
	w.mu.Lock()
	w.started++
	w.mu.Unlock()
	c, err := runnerOf(task, w.box, w.wire.dial)
	if err != nil {
		return "", err
	}
	c.URL, c.Idle, c.Rand = "ws://relay", 20*time.Second, rand.New(rand.NewPCG(w.seed, 2))
	if w.set != nil {
		w.set(&c)
	}
	w.box.runner = runner.New(c)
	w.runs.Go(func() {
		ctx, cancel := context.WithTimeout(w.t.Context(), w.patience)
		defer cancel()
		err := w.box.runner.Run(ctx)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.runErr = err
	})
	return "task", nil
}

const cutBoxID = storage.BoxID("t/s")

// open opens a session.
func (w *cutWorld) open() storage.ID {
	w.t.Helper()
	id := initialize(w.t, w.host)
	if _, err := w.host.Accept(w.t.Context(), caller, id, []wire.Message{parse(w.t, initialized)}, false); err != nil {
		w.t.Fatal(err)
	}
	return id
}

// cutCall is what one call should do, and its outcome.
type cutCall struct {
	Label    string `json:"label"`
	Wait     int    `json:"wait"` // milliseconds, before each message it sends
	Progress int    `json:"progress"`
	Ask      bool   `json:"ask"`
	Pad      string `json:"pad"`
	Result   int    `json:"result"` // bytes of padding in the result
}

// cutResult is the result of a call.
type cutResult struct {
	Label  string `json:"label"`
	Count  int    `json:"count"` // the session's counter after this call
	Answer string `json:"answer"`
	Got    int    `json:"got"` // length of Pad
	Pad    string `json:"pad"`
}

// call makes one call, answers its questions, and checks all events that come.
func (w *cutWorld) call(id storage.ID, number int, c cutCall) cutResult {
	params, err := json.Marshal(c)
	commontest.OK(w.t, err)
	begun := time.Now()
	call, err := w.host.Accept(w.t.Context(), caller, id, []wire.Message{
		parse(w.t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":%s}`, number, params)),
	}, false)
	if err != nil {
		w.t.Errorf("call %s was not taken: %v", c.Label, err)
		return cutResult{}
	}
	var got []storage.Event
	for !call.Done() {
		events, err := call.Next(w.t.Context(), time.Now().Add(time.Minute))
		if err != nil {
			w.t.Errorf("call %s: %v", c.Label, err)
			return cutResult{}
		}
		for _, e := range events {
			w.answer(id, e.Raw)
		}
		got = append(got, events...)
		if time.Since(begun) > 20*time.Minute {
			w.t.Errorf("call %s does not end", c.Label)
			return cutResult{}
		}
	}
	if took := time.Since(begun); c.Wait == 0 {
		w.mu.Lock()
		w.quick[took]++
		w.mu.Unlock()
	}
	return w.heard(c, number, got)
}

// answer answers a question.
func (w *cutWorld) answer(id storage.ID, raw []byte) {
	m := parse(w.t, string(raw))
	if m.Kind != wire.Request {
		return
	}
	if _, err := w.host.Accept(w.t.Context(), caller, id, []wire.Message{
		parse(w.t, string(wire.ResultResponse(m.ID, json.RawMessage(`{"heard":true}`)))),
	}, false); err != nil {
		w.t.Errorf("answer to %s: %v", m.ID, err)
	}
}

// heard checks the events of one call: progress from 1 in order, at most one
// question, one response, which is the last.
func (w *cutWorld) heard(c cutCall, number int, events []storage.Event) cutResult {
	progress := 0
	var r cutResult
	for i, e := range events {
		m := parse(w.t, string(e.Raw))
		if e.Index != storage.Index(i+1) || e.Final != (i == len(events)-1) || e.Final != (m.Kind == wire.Response) {
			w.t.Errorf("event %d of call %s has index %d, final %v: %.80s", i+1, c.Label, e.Index, e.Final, e.Raw)
		}
		if m.Kind == wire.Notification {
			progress++
			if want := fmt.Sprintf(`{"label":%q,"n":%d}`, c.Label, progress); string(m.Params) != want {
				w.t.Errorf("call %s: got %s, want %s", c.Label, m.Params, want)
			}
		}
		if m.Kind == wire.Response {
			if err := json.Unmarshal(wire.Lookup(e.Raw, "result"), &r); err != nil || string(m.ID) != strconv.Itoa(number) {
				w.t.Errorf("call %s ended in %.200s", c.Label, e.Raw)
			}
		}
	}
	if progress != c.Progress || r.Label != c.Label || r.Got != len(c.Pad) || r.Pad != cutPad(c.Result) || c.Ask != (r.Answer != "") {
		w.t.Errorf("call %s: %d of %d times progress, result %.200v", c.Label, progress, c.Progress, r)
	}
	return r
}

// cutPad returns a text of n bytes, with characters of every length.
func cutPad(n int) string { return strings.Repeat("aé€😀", n/10) }

// cutBox executes calls. Each session has a process: a counter in memory.
type cutBox struct {
	unasked
	t      *testing.T
	runner *runner.Runner
	work   sync.WaitGroup

	mu        sync.Mutex
	counters  map[storage.ID]int
	turns     map[storage.ID]*sync.Mutex // held while events of a session are passed to the sink
	executed  map[string]int
	closed    int // streams the host has ended by itself
	questions map[storage.ID]map[string]chan []byte
	calls     int
	idle      time.Time
}

var _ runner.Executor = (*cutBox)(nil)

func newCutBox(t *testing.T) *cutBox {
	return &cutBox{
		t: t, counters: map[storage.ID]int{}, turns: map[storage.ID]*sync.Mutex{}, executed: map[string]int{},
		questions: map[storage.ID]map[string]chan []byte{}, idle: time.Now(),
	}
}

// Deliver implements Executor.
func (x *cutBox) Deliver(d runner.Delivery) {
	m, err := wire.Parse(d.Raw)
	if err != nil || m.Kind != wire.Request {
		x.t.Errorf("the box was given %.80q: %v", d.Raw, err)
		return
	}
	var c cutCall
	commontest.Check(x.t, json.Unmarshal(m.Params, &c))
	x.mu.Lock()
	x.executed[c.Label]++
	x.calls++
	x.counters[d.Session]++
	count := x.counters[d.Session]
	x.mu.Unlock()
	x.work.Go(func() {
		x.execute(d, m, c, count)
		x.mu.Lock()
		defer x.mu.Unlock()
		x.calls--
		x.idle = time.Now()
	})
}

func (x *cutBox) execute(d runner.Delivery, m wire.Message, c cutCall, count int) {
	wait := func() { time.Sleep(time.Duration(c.Wait) * time.Millisecond) }
	say := func(stream storage.StreamID, raw []byte, final bool) {
		x.runner.Event(runner.Event{Session: d.Session, Stream: stream, Ticket: d.Ticket, Raw: raw, Final: final})
	}
	say(storage.Standalone, wire.NewNotification("notifications/message", fmt.Appendf(nil, `{"counted":%d}`, count)), false)
	for n := range c.Progress {
		wait()
		say(d.ID, wire.NewNotification("notifications/progress", fmt.Appendf(nil, `{"label":%q,"n":%d}`, c.Label, n+1)), false)
	}
	r := cutResult{Label: c.Label, Count: count, Got: len(c.Pad), Pad: cutPad(c.Result)}
	if c.Ask {
		wait()
		question := "q-" + c.Label
		heard := make(chan []byte, 100) // an answer may come again
		x.ask(d.Session, question, heard)
		say(d.ID, wire.NewRequest(strconv.AppendQuote(nil, question), "elicitation/create", json.RawMessage(`{}`)), false)
		r.Answer = string(<-heard)
		x.ask(d.Session, question, nil)
	}
	wait()
	result, err := json.Marshal(r)
	commontest.Check(x.t, err)
	say(d.ID, wire.ResultResponse(m.ID, bytes.ReplaceAll(result, []byte(`\u`), []byte(`u`))), true)
}

// ask opens a question, or closes it with a nil channel.
func (x *cutBox) ask(id storage.ID, question string, heard chan []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.questions[id] == nil {
		x.questions[id] = map[string]chan []byte{}
	}
	x.questions[id][question] = heard
	if heard == nil {
		delete(x.questions[id], question)
	}
}

// Answer implements Executor.
func (x *cutBox) Answer(id storage.ID, question string, raw []byte) {
	x.mu.Lock()
	heard := x.questions[id][question]
	x.mu.Unlock()
	if heard != nil {
		heard <- bytes.Clone(raw)
	}
}

// CloseStream implements Executor.
func (x *cutBox) CloseStream(storage.ID, storage.StreamID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed++
}

// Questions implements Executor.
func (x *cutBox) Questions() map[storage.ID][]string {
	x.mu.Lock()
	defer x.mu.Unlock()
	open := map[storage.ID][]string{}
	for id, questions := range x.questions {
		if len(questions) > 0 {
			open[id] = slices.Sorted(maps.Keys(questions))
		}
	}
	return open
}

// IdleSince implements Executor.
func (x *cutBox) IdleSince() (time.Time, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.idle, x.calls == 0
}

package transport_test

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// backend is a server whose tools are Go functions. It stands for the relay, the box and
// the process, and writes its messages to the log. They reach the client, whatever its
// transport, as if they had come through the relay function.
type backend struct {
	w       *world
	tools   map[string]func(run)
	running sync.WaitGroup // tools
	turn    chan struct{}  // has an element while a batch is written: a runner sends one at a time

	mu        sync.Mutex
	delivered []sessions.Delivery
	got       []string // what was delivered
	answers   []string
	asked     map[string]chan string          // answers, by session and question
	ended     []storage.ID                    // sessions that have ended
	err       error                           // of Deliver
	tend      func() (sessions.Status, error) // called for the status of its trackers; nil: all is in order
	attend    error                           // of Track
}

// tool adds a tool, or the answer to a method.
func (b *backend) tool(name string, f func(run)) {
	if b.tools == nil {
		b.tools = map[string]func(run){}
	}
	b.tools[name] = f
}

func (b *backend) Deliver(ctx context.Context, d sessions.Delivery, _ storage.Box) (sessions.Tracker, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.delivered, b.got = append(b.delivered, d), append(b.got, string(d.Raw))
	if b.err != nil || len(d.Requests) == 0 {
		return nil, b.err
	}
	msgs, _, err := wire.ParseBody(d.Raw)
	if err != nil {
		return nil, err
	}
	r := run{context.WithoutCancel(ctx), b.w, d.Session, d.Stream, d.Requests, d.Address, string(d.Raw)}
	name, _ := wire.String(wire.Lookup(msgs[0].Params, "name"))
	if name == "" {
		name = msgs[0].Method
	}
	switch f := b.tools[name]; {
	case f != nil:
		b.running.Go(func() { f(r) })
	case name == wire.MethodInitialize:
		capabilities := map[string]string{"quiet": `{}`, "pushy": `{"tools":{"listChanged":true}}`}[d.Server]
		r.end(`{"protocolVersion":"2025-11-25","capabilities":` + capabilities + `}`)
	default:
		r.end(`{"content":[]}`)
	}
	return tracker{b.tend}, nil
}

func (b *backend) Track(context.Context, storage.Session, storage.StreamID) (sessions.Tracker, error) {
	return tracker{b.tend}, b.attend
}

// Answer takes an answer of a client. A repeat of an answer does not reach the tool.
func (b *backend) Answer(_ context.Context, a storage.Answer, _ storage.Box) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answers = append(b.answers, string(a.Raw))
	question := string(a.Session) + " " + a.Question
	if heard := b.asked[question]; heard != nil && len(heard) == 0 {
		heard <- string(a.Raw)
	}
	return nil
}

func (b *backend) End(_ context.Context, s storage.Session, _ storage.Box) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = append(b.ended, s.ID)
	return nil
}

// taken returns what the servers have got since its last call.
func (w *world) taken() []string {
	w.backend.mu.Lock()
	defer w.backend.mu.Unlock()
	got := w.backend.got
	w.backend.got = nil
	return got
}

// silent asserts that the servers have got nothing since the last call of taken.
func (w *world) silent() {
	w.t.Helper()
	if got := w.taken(); len(got) > 0 {
		w.t.Errorf("the servers got %s", got)
	}
}

// sent returns the messages of one session that its server got.
func (w *world) sent(id string) (all []sessions.Delivery) {
	w.backend.mu.Lock()
	defer w.backend.mu.Unlock()
	for _, d := range w.backend.delivered {
		if string(d.Session) == id {
			all = append(all, d)
		}
	}
	return all
}

// tracker reports that everything is in order, unless the test says otherwise.
type tracker struct {
	tend func() (sessions.Status, error)
}

func (t tracker) Check(context.Context) (sessions.Status, error) {
	if t.tend != nil {
		return t.tend()
	}
	return sessions.Status{Accepted: true, Next: time.Now().Add(time.Hour)}, nil
}

// run is one delivery, as a tool sees it.
type run struct {
	ctx      context.Context
	w        *world
	session  storage.ID
	stream   storage.StreamID
	requests []json.RawMessage
	address  storage.Address
	raw      string // the messages
}

// outside returns a run for messages of a session that belong to no request.
func (w *world) outside(session storage.ID) run {
	return run{ctx: w.t.Context(), w: w, session: session}
}

// outside returns a run for messages of a tool that do not belong to its call.
func (r run) outside() run {
	r.stream, r.requests = storage.Standalone, nil
	return r
}

// seq numbers the batches of all sessions. Within one session the numbers increase, as
// those of a runner do.
var seq atomic.Int64

// append writes one event behind the last. The host may write to the stream meanwhile.
func (r run) append(raw string, final bool) {
	r.write(storage.Batch{Final: final, Events: [][]byte{[]byte(raw)}})
}

func (r run) write(b storage.Batch) {
	r.w.backend.turn <- struct{}{}
	defer func() { <-r.w.backend.turn }()
	err := error(storage.Conflict)
	for errors.Is(err, storage.Conflict) {
		var tail storage.Tail
		if tail, err = r.w.store.Tail(r.ctx, r.session, r.stream); err == nil {
			b.Session, b.Stream, b.First, b.Gen, b.Seq = r.session, r.stream, tail.Last+1, 1, seq.Add(1)
			err = sessions.Publisher{Store: r.w.store, Clients: r.w.api}.Append(r.ctx, r.address, b)
		}
	}
	if err != nil {
		panic(err)
	}
}

// pause writes an event that ends the response to every reader of the stream, with this retry.
func (r run) pause(raw string, retry time.Duration) {
	r.write(storage.Batch{Retry: retry, Events: [][]byte{[]byte(raw)}})
}

// say sends a notification; end sends the response to the first request.
func (r run) say(text string) { r.append(said(text), false) }

func (r run) end(result string) {
	r.append(`{"jsonrpc":"2.0","id":`+string(r.requests[0])+`,"result":`+result+`}`, true)
}

// fail sends an error as the response to the first request.
func (r run) fail(rpc string) {
	r.append(`{"jsonrpc":"2.0","id":`+string(r.requests[0])+`,"error":`+rpc+`}`, true)
}

// asks asks the client.
func (r run) asks(id, question string) {
	b := r.w.backend
	b.mu.Lock()
	b.asked[string(r.session)+" "+id] = make(chan string, 1)
	b.mu.Unlock()
	r.append(`{"jsonrpc":"2.0","id":"`+id+`",`+question+`}`, false)
}

// heard waits for the answer to a question without a limit. The end of the test ends the tool too.
func (r run) heard(id string) (answer string) {
	b := r.w.backend
	b.mu.Lock()
	heard := b.asked[string(r.session)+" "+id]
	b.mu.Unlock()
	select {
	case answer = <-heard:
	case <-r.w.t.Context().Done():
		runtime.Goexit()
	}
	return answer
}

// ask asks the client, and waits for the answer.
func (r run) ask(id, question string) (answer string) {
	r.asks(id, question)
	return r.heard(id)
}

// answers waits until all of these questions have been answered, and returns what the client has
// answered.
func (r run) answers(ids ...string) (said []string) {
	for _, id := range ids {
		answer := []byte(r.heard(id))
		said = append(said, string(wire.Lookup(answer, "result"))+string(wire.Lookup(answer, "error")))
	}
	return said
}

func said(text string) string {
	return `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"` + text + `"}}`
}

func resultOf(result string) string { return `{"jsonrpc":"2.0","id":1,"result":` + result + `}` }

func callOf(tool string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `"}}`
}

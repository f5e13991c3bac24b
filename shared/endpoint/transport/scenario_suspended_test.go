package transport_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// den is a world with real relay functions and runners behind it. The runners execute a
// server of the modern era. It asks in two rounds, first two questions and then one, and
// returns the answers.
type den struct {
	*world
	sealer *relayserver.Sealer

	mu   sync.Mutex
	box  *denBox // the newest
	runs []string
}

func newDen(w *world) *den {
	sealer, err := relayserver.NewSealer(make([]byte, 32))
	commontest.OK(w.t, err)
	d := &den{world: w, sealer: sealer}
	w.behind = func(store storage.Store) sessions.Backend { return relayserver.NewBackend(d.config(store)) }
	return d
}

func (d *den) config(store storage.Store) relayserver.Config {
	return relayserver.Config{
		Store: store, Poster: denPoster{d}, Clients: d.api, Fleet: denFleet{d}, Sealer: d.sealer,
		Launch: func(storage.Box) (map[string]string, error) { return map[string]string{}, nil },
	}
}

// function serves one event of the relay by a function that was made for it.
func (d *den) function(serve func(relayserver.Config) error) error {
	store := d.open()
	defer func() { _ = store.Close() }()
	return serve(d.config(store))
}

// kill ends the box without a bye, and reports it to the sweep as the fleet does.
func (d *den) kill() {
	d.mu.Lock()
	b := d.box
	d.mu.Unlock()
	b.end()
	b.hang()
	<-b.over
	commontest.Check(d.t, d.function(func(c relayserver.Config) error { return relayserver.NewSweeper(c).Sweep(d.t.Context()) }))
}

func (d *den) newest() *denBox {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.box
}

type denFleet struct{ d *den }

func (f denFleet) Run(ctx context.Context, t fleet.Task) (string, error) {
	gen, err := strconv.ParseInt(t.Env[frame.EnvGeneration], 10, 64)
	if err != nil {
		return "", err
	}
	own, kill := context.WithCancel(context.WithoutCancel(ctx))
	b := &denBox{d: f.d, task: "task-" + strconv.FormatInt(gen, 10), ctx: own, end: kill, over: make(chan struct{}), in: make(chan []byte, 100), idle: time.Now(), hung: make(chan struct{})}
	b.hang = sync.OnceFunc(func() { close(b.hung) })
	b.runner = runner.New(runner.Config{
		Box: storage.BoxID(t.Box), Gen: storage.Generation(gen), Token: t.Env[frame.EnvToken], Task: b.task, Executor: b, Flush: time.Millisecond,
		Dial: func(context.Context, string, http.Header) (runner.Conn, error) { return b, nil },
	})
	f.d.mu.Lock()
	f.d.box = b
	f.d.mu.Unlock()
	go func() {
		defer close(b.over)
		defer b.hang()
		defer kill()
		_ = b.runner.Run(own)
	}()
	f.d.t.Cleanup(func() { kill(); b.hang(); <-b.over })
	return b.task, nil
}

func (denFleet) Stop(context.Context, string, string) error { return nil }

func (f denFleet) Tasks(context.Context) (running []fleet.Status, err error) {
	if b := f.d.newest(); b != nil && b.ctx.Err() == nil {
		running = append(running, fleet.Status{ID: b.task, State: fleet.Running})
	}
	return running, nil
}

func (denFleet) Traits(string) fleet.Traits {
	return fleet.Traits{Lists: true}
}

type denPoster struct{ d *den }

func (p denPoster) Post(_ context.Context, conn string, data []byte) error {
	b := p.d.newest()
	if b == nil || b.task != conn || b.ctx.Err() != nil {
		return storage.Errorf(storage.Closed, "simulated: gone")
	}
	b.in <- data
	return nil
}

// denBox is one box: its connection and its executor.
type denBox struct {
	d      *den
	task   string // and the name of its connection
	runner *runner.Runner
	ctx    context.Context // its life
	end    context.CancelFunc
	over   chan struct{}
	in     chan []byte
	hung   chan struct{} // its connection is closed
	hang   func()

	mu   sync.Mutex
	idle time.Time
}

// Send implements runner.Conn. A frame that a killed box has sent still arrives.
func (b *denBox) Send(data []byte) error {
	go func() {
		err := b.d.function(func(c relayserver.Config) error {
			reply, err := relayserver.NewHandler(c).Frame(context.WithoutCancel(b.ctx), b.task, data)
			if err == nil && reply != nil {
				b.in <- reply
			}
			return err
		})
		commontest.Check(b.d.t, err)
	}()
	return nil
}

// Receive implements runner.Conn.
func (b *denBox) Receive() ([]byte, error) {
	select {
	case data := <-b.in:
		return data, nil
	case <-b.hung:
		return nil, io.EOF
	case <-b.ctx.Done():
		return nil, b.ctx.Err()
	}
}

// Close implements runner.Conn.
func (b *denBox) Close(string) error {
	b.hang()
	return nil
}

// Deliver implements runner.Executor.
func (b *denBox) Deliver(d runner.Delivery) {
	m, err := wire.Parse(d.Raw)
	if err != nil || m.Kind != wire.Request {
		return
	}
	b.d.mu.Lock()
	b.d.runs = append(b.d.runs, fmt.Sprintf("%d %s", d.Round, wire.Lookup(m.Params, "inputResponses")))
	b.d.mu.Unlock()
	b.mu.Lock()
	b.idle = time.Now()
	b.mu.Unlock()
	go b.answer(d, m)
}

func (b *denBox) answer(d runner.Delivery, m wire.Message) {
	say := func(e runner.Event) {
		e.Session, e.Stream, e.Ticket = d.Session, d.ID, d.Ticket
		b.runner.Event(e)
	}
	count := []int{2, 1, 0}[d.Round]
	if count == 0 {
		say(runner.Event{Raw: wire.ResultResponse(m.ID, json.RawMessage(`{"heard":`+string(wire.Lookup(m.Params, "inputResponses"))+`}`)), Final: true})
		return
	}
	asks := &runner.Suspension{
		Raw:    wire.NewRequest(m.ID, m.Method, json.RawMessage(`{"name":"ask","requestState":"`+strconv.Itoa(d.Round+1)+`"}`)),
		Within: time.Hour,
	}
	for n := range count {
		id := storage.QuestionID(d.ID, d.Round+1, n)
		asks.Questions = append(asks.Questions, storage.Question{ID: id, Key: fmt.Sprintf("k%d", n), Method: wire.MethodElicit})
		e := runner.Event{Raw: []byte(`{"jsonrpc":"2.0","id":"` + id + `",` + elicit + `}`)}
		if n == count-1 {
			e.Asks = asks
		}
		say(e)
	}
}

// Answer implements runner.Executor. A server of the modern era gets no answers: it is
// called again.
func (b *denBox) Answer(storage.ID, string, []byte) { b.d.t.Error("a process was answered") }

// CloseStream implements runner.Executor.
func (b *denBox) CloseStream(storage.ID, storage.StreamID) {}

func (*denBox) Halt(storage.ID, string, time.Duration) {}

// StopSession implements runner.Executor.
func (b *denBox) StopSession(storage.ID) {}

// Questions implements runner.Executor.
func (b *denBox) Questions() map[storage.ID][]string { return nil }

// IdleSince implements runner.Executor.
func (b *denBox) IdleSince() (time.Time, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.idle, true
}

// dens plays a scenario over every transport, on every store.
func dens(t *testing.T, play func(t *testing.T, d *den, p party)) {
	everyParty(t, func(t *testing.T, w *world, open func(server string) party) {
		d := newDen(w)
		p := open("known")
		play(t, d, p)
		p.leave()
		d.kill()
		synctest.Wait()
	})
}

// yes answers a question; n tells this answer from others.
func yes(p party, asked string, n int) {
	id, _ := wire.String(wire.Lookup([]byte(asked), "id"))
	p.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":{"action":"accept","content":{"n":%d}}}`, id, n))
}

// E-11, E-12, E-13: a server of the modern era asks a legacy client. Then everything is
// killed: the box, every function, and the client's connection. Ten minutes later the
// client answers. Each round is executed once.
func TestSuspendedCallIsAnsweredAfterEverythingWasKilled(t *testing.T) {
	dens(t, func(t *testing.T, d *den, p party) {
		p.say(callOf("ask"))
		for round, count := range []int{2, 1} {
			asked := p.heard()
			if len(asked) != count {
				t.Fatalf("round %d asks %q", round+1, asked)
			}
			p.leave()
			d.kill()
			time.Sleep(10 * time.Minute)
			p.back()
			for n, question := range asked {
				if !strings.Contains(question, elicit) {
					t.Errorf("round %d asks %s", round+1, question)
				}
				yes(p, question, 10*round+n)
			}
			time.Sleep(10 * time.Second) // a box wakes
		}
		const last = `{"k0":{"action":"accept","content":{"n":10}}}`
		commontest.Same(t, []string{resultOf(`{"heard":` + last + `}`)}, p.heard())
		want := []string{"0 ", `1 {"k0":{"action":"accept","content":{"n":0}},"k1":{"action":"accept","content":{"n":1}}}`, "2 " + last}
		commontest.SameIn(t, "rounds that were executed", want, d.runs)
	})
}

// E-14: a suspended call waits for its client's answer. The box goes to sleep long before
// the answer, although the client stays connected.
func TestSuspendedCallHoldsNoBox(t *testing.T) {
	dens(t, func(t *testing.T, d *den, p party) {
		p.say(callOf("ask"))
		asked := p.heard()
		if len(asked) != 2 {
			t.Fatalf("asked %q", asked)
		}
		before := d.newest()
		time.Sleep(10 * time.Minute)
		select {
		case <-before.over:
		default:
			t.Error("the box waits for a human")
		}
		p.leave() // the response to a client that polls has ended
		p.back()
		yes(p, asked[0], 0)
		yes(p, asked[1], 1)
		time.Sleep(10 * time.Second)
		if again := p.heard(); len(again) != 1 || d.newest() == before {
			t.Errorf("the next round says %q", again)
		}
	})
}

package relay_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
	"github.com/dormouse-mcp/dormouse/shared/relay"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/sessiontest"
)

const simSeeds = 20

// simulation is runners and the real host over a network that loses, doubles,
// delays and cuts, on a store in memory.
type simulation struct {
	t      *testing.T
	store  *sessiontest.Memory
	host   *relay.Backend
	relay  *relay.Handler
	sweep  *relay.Sweeper
	faults faults
	log    *slog.Logger

	mu       sync.Mutex
	random   *rand.Rand
	conns    map[string]*simConn
	tasks    map[string]*fleet.Status // by client token
	executed map[session.StreamID]int
	parting  map[string]bool  // tasks whose last word, but for hello, was bye
	ended    map[string]error // what the runners of tasks returned
	runners  sync.WaitGroup
	lives    int
}

// faults are chances in a thousand.
type faults struct {
	lose, double int // of a frame or a post
	delay        time.Duration
	cut          time.Duration // connections live about this long; 0 for ever
	kill         time.Duration // runners live about this long; 0 for ever
}

func (s *simulation) chance(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.random.IntN(1000) < n
}

func (s *simulation) within(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.random.Int64N(int64(d)))
}

// carry brings something over the network: late, twice or never.
func (s *simulation) carry(arrive func()) {
	times := 1
	if s.chance(s.faults.lose) {
		times = 0
	} else if s.chance(s.faults.double) {
		times = 2
	}
	for i := range times {
		delay := 5*time.Millisecond + s.within(20*time.Millisecond)
		if i > 0 || s.chance(s.faults.double) {
			delay += s.within(s.faults.delay)
		}
		time.AfterFunc(delay, arrive)
	}
}

// Post implements relay.Poster.
func (s *simulation) Post(_ context.Context, conn string, data []byte) error {
	s.mu.Lock()
	c := s.conns[conn]
	s.mu.Unlock()
	if c == nil || c.isClosed() {
		return session.Errorf(session.Closed, "gone")
	}
	s.carry(func() { c.arrive(data) })
	return nil
}

func (s *simulation) dial(task string) (relay.Conn, error) {
	c := &simConn{s: s, task: task, id: session.NewNonce(), in: make(chan []byte, 10_000), closed: make(chan struct{})}
	s.mu.Lock()
	s.conns[c.id] = c
	s.mu.Unlock()
	if s.faults.cut > 0 {
		time.AfterFunc(s.within(2*s.faults.cut), func() { _ = c.Close("cut") })
	}
	return c, nil
}

type simConn struct {
	s      *simulation
	task   string
	id     string
	in     chan []byte
	once   sync.Once
	closed chan struct{}
}

func (c *simConn) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

func (c *simConn) arrive(data []byte) {
	select {
	case c.in <- data:
	case <-c.closed:
	}
}

func (c *simConn) Send(_ context.Context, data []byte) error {
	if c.isClosed() {
		return io.ErrClosedPipe
	}
	if f, err := relay.Decode(data); err == nil && f.Type != relay.Hello {
		c.s.mu.Lock()
		c.s.parting[c.task] = f.Type == relay.Bye
		c.s.mu.Unlock()
	}
	c.s.carry(func() {
		reply, err := c.s.relay.Frame(context.Background(), c.id, data)
		if err != nil && !errors.Is(err, session.Closed) {
			c.s.t.Errorf("the host refused %.200s: %v", data, err)
		}
		if reply != nil {
			_ = c.s.Post(context.Background(), c.id, reply)
		}
	})
	return nil
}

func (c *simConn) Receive(ctx context.Context) ([]byte, error) {
	select {
	case data := <-c.in:
		return data, nil
	case <-c.closed:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *simConn) Close(string) error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

// Run implements fleet.Fleet: it starts a runner with a box of its own.
func (s *simulation) Run(ctx context.Context, t fleet.Task) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.tasks[t.ClientToken]; ok {
		return old.ID, nil
	}
	s.lives++
	status := &fleet.Status{ID: fmt.Sprint("task-", s.lives), ClientToken: t.ClientToken, Box: t.Box, State: fleet.Running}
	s.tasks[t.ClientToken] = status
	gen, err := strconv.ParseInt(t.Env[relay.EnvGeneration], 10, 64)
	if err != nil {
		return "", err
	}
	box := &simBox{s: s, idle: time.Now()}
	box.runner = relay.NewRunner(relay.RunnerConfig{
		URL: "wss://relay", Box: session.BoxID(t.Box), Gen: session.Generation(gen), Token: t.Env[relay.EnvToken],
		Task: status.ID, Executor: box, Idle: 2 * time.Second,
		Dial: func(context.Context, string) (relay.Conn, error) { return s.dial(status.ID) },
		Log:  s.log.With("task", status.ID),
	})
	s.runners.Go(func() { s.life(box, status) })
	return status.ID, nil
}

// life is the life of one task, to its stop as the fleet tells it.
func (s *simulation) life(box *simBox, status *fleet.Status) {
	ctx, kill := context.WithCancel(context.Background())
	defer kill()
	time.Sleep(time.Second)
	if s.faults.kill > 0 {
		time.AfterFunc(s.within(2*s.faults.kill), func() { box.die(); kill() })
	}
	err := box.runner.Run(ctx)
	box.die()
	s.mu.Lock()
	s.ended[status.ID] = err
	status.State, status.Stopped = fleet.Stopped, time.Now()
	copied := *status
	s.mu.Unlock()
	if err := s.sweep.Stopped(context.Background(), copied); err != nil {
		s.t.Errorf("stopped: %v", err)
	}
}

func (s *simulation) Stop(context.Context, string, string) error { return nil }

func (s *simulation) Tasks(context.Context) ([]fleet.Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []fleet.Status
	for _, t := range s.tasks {
		out = append(out, *t)
	}
	return out, nil
}

// simBox executes a request by saying a few things and then its response.
type simBox struct {
	s        *simulation
	runner   *relay.Runner
	mu       sync.Mutex
	inFlight int
	idle     time.Time
	dead     bool
}

func (x *simBox) die() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dead = true
}

func (x *simBox) Deliver(d relay.Delivery) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.dead {
		return
	}
	x.s.mu.Lock()
	x.s.executed[d.ID]++
	x.s.mu.Unlock()
	x.inFlight++
	x.s.runners.Go(func() { x.execute(d) })
}

func (x *simBox) execute(d relay.Delivery) {
	say := func(stream session.StreamID, raw string, final bool) {
		x.mu.Lock()
		dead := x.dead
		x.mu.Unlock()
		if !dead {
			x.runner.Event(relay.Event{Session: d.Session, Stream: stream, Ticket: d.Ticket, Raw: []byte(raw), Final: final})
		}
	}
	for i := range x.s.within(4) {
		time.Sleep(x.s.within(2 * time.Second))
		say(d.ID, fmt.Sprintf(`{"progress":%d}`, i), false)
		say(session.Common, fmt.Sprintf(`{"of":%q,"n":%d}`, d.ID, i), false)
	}
	time.Sleep(x.s.within(500 * time.Millisecond))
	say(d.ID, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"result":%q}`, d.ID), true)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.inFlight--
	x.idle = time.Now()
}

func (x *simBox) Answer(session.ID, string, []byte)        {}
func (x *simBox) CloseStream(session.ID, session.StreamID) {}
func (x *simBox) StopSession(session.ID)                   {}
func (x *simBox) Questions() map[session.ID][]string       { return nil }
func (x *simBox) IdleSince() (since time.Time, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.idle, x.inFlight == 0
}

// call is one client's request, from the delivery to the end in the log.
func (s *simulation) call(ctx context.Context, id session.ID, box session.BoxID) (session.StreamID, error) {
	stream := session.NewStreamID()
	client, b, err := s.store.Load(ctx, id, box)
	if err != nil {
		return stream, err
	}
	tender, err := s.host.Deliver(ctx, session.Delivery{
		Address: session.Address{Session: id, Stream: stream, Requests: []json.RawMessage{json.RawMessage("1")}, Box: box},
		Client:  client, Server: "everything", Raw: []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`),
	}, b)
	if err != nil {
		return stream, err
	}
	after := session.Index(0)
	until := time.Now().Add(time.Second)
	for end := time.Now().Add(time.Hour); time.Now().Before(end); {
		page, err := s.store.Wait(ctx, id, stream, after, until)
		if err != nil {
			return stream, err
		}
		if page.Final() {
			return stream, nil
		}
		if n := len(page.Events); n > 0 {
			after = page.Events[n-1].Index
		}
		duty, err := tender.Tend(ctx)
		if err != nil {
			return stream, err
		}
		until = duty.Next
	}
	return stream, errors.New("no end within an hour")
}

func simulate(t *testing.T, seed uint64, f faults, check func(s *simulation, streams map[session.StreamID]session.ID)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &simulation{
			t: t, store: sessiontest.NewMemory(), faults: f, random: rand.New(rand.NewPCG(seed, 1)), conns: map[string]*simConn{},
			tasks: map[string]*fleet.Status{}, executed: map[session.StreamID]int{}, parting: map[string]bool{}, ended: map[string]error{}, log: slog.New(slog.DiscardHandler),
		}
		if testing.Verbose() {
			s.log = slog.New(slog.NewTextHandler(t.Output(), nil))
		}
		sealer, err := relay.NewSealer(make([]byte, 32))
		if err != nil {
			t.Fatal(err)
		}
		c := relay.Config{
			Store: s.store, Poster: s, Fleet: s, Sealer: sealer, Log: s.log,
			Launch: func(session.Box) (map[string]string, error) { return map[string]string{}, nil },
		}
		s.host, s.relay, s.sweep = relay.NewBackend(c), relay.NewHandler(c), relay.NewSweeper(c)
		over, end := context.WithCancel(t.Context())
		defer end()
		go s.schedule(over)
		check(s, s.clients())
	})
}

// schedule sweeps every minute.
func (s *simulation) schedule(ctx context.Context) {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := s.sweep.Sweep(ctx); err != nil && ctx.Err() == nil {
				s.t.Errorf("sweep: %v", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// checkLog looks at what the client of one request could read.
func (s *simulation) checkLog(stream session.StreamID, id session.ID) (last string) {
	page, err := s.store.Read(s.t.Context(), id, stream, 0, 1000)
	if err != nil || len(page.Events) == 0 {
		s.t.Errorf("log of %s: %d events, %v", stream, len(page.Events), err)
		return ""
	}
	for i, e := range page.Events {
		if e.Index != session.Index(i+1) || e.Final != (i == len(page.Events)-1) {
			s.t.Errorf("event %d of %s has index %d, final %t", i+1, stream, e.Index, e.Final)
		}
		last = string(e.Raw)
	}
	if n := s.executed[stream]; n > 1 {
		s.t.Errorf("%s was executed %d times", stream, n)
	}
	return last
}

// checkCommon looks for events of the common stream that are there twice.
func (s *simulation) checkCommon(id session.ID) {
	seen := map[string]bool{}
	for after := session.Index(0); ; {
		page, err := s.store.Read(s.t.Context(), id, session.Common, after, 1000)
		if err != nil {
			s.t.Error(err)
		}
		for _, e := range page.Events {
			if e.Index != after+1 || seen[string(e.Raw)] {
				s.t.Errorf("event %d of the common stream of %s after %d: %s", e.Index, id, after, e.Raw)
			}
			seen[string(e.Raw)], after = true, e.Index
		}
		if len(page.Events) == 0 {
			return
		}
	}
}

// clients has clients call now and then, and returns which session each call was
// of.
func (s *simulation) clients() map[session.StreamID]session.ID {
	ctx := s.t.Context()
	box := session.BoxFor("tenant", "everything")
	streams := map[session.StreamID]session.ID{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for n := range 3 {
		id := session.ID(fmt.Sprint("s", n))
		err := s.store.Create(ctx, session.Session{ID: id, Tenant: "tenant", Server: "everything", State: session.Ready})
		if err != nil {
			s.t.Fatal(err)
		}
		for range 3 {
			wg.Go(func() {
				for range 5 {
					time.Sleep(s.within(12 * time.Second))
					stream, err := s.call(ctx, id, box)
					if err != nil {
						s.t.Errorf("call %s: %v", stream, err)
					}
					mu.Lock()
					streams[stream] = id
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	s.runners.Wait()
	return streams
}

func TestSimulatedNetworkLosesNoRequestAndExecutesNoneTwice(t *testing.T) {
	for seed := range uint64(simSeeds) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			simulate(t, seed, faults{lose: 30, double: 50, delay: 8 * time.Second, cut: 20 * time.Second}, func(s *simulation, streams map[session.StreamID]session.ID) {
				for stream, id := range streams {
					if last := s.checkLog(stream, id); last != fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"result":%q}`, stream) {
						t.Errorf("%s was executed %d times and ended in %s", stream, s.executed[stream], last)
					}
					s.checkCommon(id)
				}
				for task, err := range s.ended {
					// After a bye the box may have been woken by somebody else.
					if err != nil && (!errors.Is(err, relay.ErrFenced) || !s.parting[task]) {
						t.Errorf("a healthy runner stopped: %v", err)
					}
				}
			})
		})
	}
}

func TestSimulatedDeathsEndEveryRequestOnce(t *testing.T) {
	for seed := range uint64(simSeeds) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			simulate(t, seed, faults{lose: 20, double: 30, delay: 3 * time.Second, cut: time.Minute, kill: 10 * time.Second}, func(s *simulation, streams map[session.StreamID]session.ID) {
				for stream, id := range streams {
					s.checkLog(stream, id)
					s.checkCommon(id)
				}
			})
		})
	}
}

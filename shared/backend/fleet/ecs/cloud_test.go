package ecs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
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

// These tests run a whole stack in virtual time. The host, relay function, sweep and
// runners are real. The ECS is a fake: its tasks live as Fargate's do, and die when a test
// says so.

// How long a task takes to reach each phase, and how long a call takes.
const (
	toPending = 2 * time.Second
	toRunning = 20 * time.Second
	toHello   = 3 * time.Second
	callTakes = 40 * time.Second
)

// phase is a moment in the life of a task.
type phase string

const (
	provisioning phase = "provisioning"
	pending      phase = "pending"
	beforeHello  phase = "running, before its hello"
	idle         phase = "awake and idle"
	inACall      phase = "in a call"
	afterBye     phase = "after its bye"
)

type wholeStack struct {
	*fake
	t       *testing.T
	store   storage.Store
	fleet   *Fleet
	host    *sessions.Manager
	handler *relayserver.Handler
	sweeper *relayserver.Sweeper
	id      storage.ID

	dies  phase                     // where the first tasks are killed
	hangs bool                      // the first tasks never send hello, but go on running
	first int                       // how many tasks are first ones
	tell  func(func(), *wholeStack) // decides when the event of a stopped task is delivered; its argument delivers one event

	live     sync.Mutex
	deaths   int
	begun    int
	machines map[string]*machine // by token
	executed map[string]int
}

// machine is a task with its runner.
type machine struct {
	s      *wholeStack
	task   *fakeTask
	ctx    context.Context
	cancel context.CancelFunc
	first  bool
	runner *runner.Runner

	mu   sync.Mutex
	dead bool
	busy int
	last time.Time
	conn *cable
}

var caller = sessions.Caller{
	Server: sessions.Server{Name: "echo", Digest: "digest", Record: true}, Tenant: "acme", Principal: "ada", Transport: storage.HTTP,
}

func newWholeStack(t *testing.T) *wholeStack {
	t.Helper()
	sealer, err := relayserver.NewSealer(make([]byte, 32))
	commontest.OK(t, err)
	s := &wholeStack{
		fake: newFake(), t: t, store: storagetest.NewMemory(), machines: map[string]*machine{}, executed: map[string]int{},
		tell: func(told func(), _ *wholeStack) { told() }, first: 1,
	}
	s.fleet = open(t, s.fake, nil)
	c := relayserver.Config{
		Store: s.store, Sealer: sealer, Poster: s, Fleet: s.fleet, ListLag: time.Minute,
		Launch: func(storage.Box) (map[string]string, error) { return map[string]string{}, nil },
	}
	s.host, s.handler, s.sweeper = sessions.New(s.store, relayserver.NewBackend(c), sessions.Limits{}), relayserver.NewHandler(c), relayserver.NewSweeper(c)
	s.after = func(action string, in map[string]any) *answer {
		switch action {
		case "RunTask":
			go s.boot(in["clientToken"].(string))
		case "StopTask":
			go s.terminate(in["task"].(string))
		}
		return nil
	}
	now := time.Now()
	s.id = "s1"
	err = s.store.Create(t.Context(), storage.Session{
		ID: s.id, Server: "echo", Digest: "digest", Tenant: "acme", Principal: "ada", Transport: storage.HTTP, State: storage.Ready,
		Version: wire.V20251125, Created: now, Used: now, Expires: now.Add(100 * time.Hour),
	})
	commontest.OK(t, err)
	return s
}

// schedule runs the sweep every five minutes until ctx ends.
func (s *wholeStack) schedule(ctx context.Context) {
	tick := time.NewTicker(5 * time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_ = s.sweeper.Sweep(ctx) // Sweep logs what failed and goes on; the next sweep repairs it
		}
	}
}

// boot runs a task from its start. If a task with this token exists, it starts nothing.
func (s *wholeStack) boot(token string) {
	s.live.Lock()
	if s.machines[token] != nil {
		s.live.Unlock()
		return
	}
	s.fake.mu.Lock()
	var task *fakeTask
	for _, t := range s.tasks {
		if t.token == token {
			task = t
		}
	}
	s.fake.mu.Unlock()
	if task == nil { // it was refused
		s.live.Unlock()
		return
	}
	m := &machine{s: s, task: task, first: s.begun < s.first, last: time.Now()}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	s.begun++
	s.machines[token] = m
	s.live.Unlock()
	m.run()
}

func (m *machine) run() {
	if m.ends(provisioning, time.Second) {
		return
	}
	m.s.move(m.s.t, m.task.token, func(t *fakeTask) { t.status = "PENDING" })
	if !m.naps(toPending) || m.ends(pending, time.Second) || !m.naps(toRunning) {
		return
	}
	m.s.move(m.s.t, m.task.token, running)
	if m.ends(beforeHello, time.Second) || !m.naps(toHello) {
		return
	}
	if m.first && m.s.hangs {
		<-m.ctx.Done()
		return
	}
	m.s.fake.mu.Lock()
	env := m.task.env
	m.s.fake.mu.Unlock()
	gen, err := strconv.ParseInt(env[frame.EnvGeneration], 10, 64)
	if err != nil {
		m.s.t.Error(err)
	}
	m.runner = runner.New(runner.Config{
		Box: storage.BoxID(env[frame.EnvBox]), Gen: storage.Generation(gen), Token: env[frame.EnvToken], Task: env[taskEnv],
		Executor: m, Dial: m.dial,
	})
	code := 0
	if err := m.runner.Run(m.ctx); err != nil {
		code = 1
	}
	m.stop(code)
}

// ends kills the task if it is a first one, and the test has chosen this phase.
func (m *machine) ends(at phase, after time.Duration) bool {
	if !m.first || m.s.dies != at {
		return false
	}
	if !m.naps(after) {
		return true
	}
	m.kill()
	return true
}

func (m *machine) naps(d time.Duration) bool {
	select {
	case <-m.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// kill ends the task, and informs neither ECS nor the relay.
func (m *machine) kill() {
	m.mu.Lock()
	m.dead = true
	m.mu.Unlock()
	m.cancel()
	m.stop(128 + 9)
}

// stop ends the task in ECS, and has EventBridge report it.
func (m *machine) stop(code int) {
	s := m.s
	s.live.Lock()
	s.deaths++
	s.live.Unlock()
	s.fake.mu.Lock()
	ended := m.task.status == "STOPPED"
	if !ended {
		ends(code)(m.task)
	}
	detail := m.task.describe()
	s.fake.mu.Unlock()
	if ended {
		return
	}
	go s.tell(func() { s.event(detail) }, s)
}

// event invokes the sweep with an event of EventBridge.
func (s *wholeStack) event(d map[string]any) {
	written := map[string]any{}
	for name, v := range d {
		if at, ok := v.(float64); ok {
			v = time.UnixMilli(int64(at * 1000)).UTC().Format(time.RFC3339Nano)
		}
		written[name] = v
	}
	detail, err := json.Marshal(written)
	if err == nil {
		var status fleet.Status
		var ours bool
		if status, ours, err = TaskEvent(detail); err == nil && ours {
			err = s.sweeper.Stopped(context.Background(), status)
		}
	}
	if err != nil {
		s.t.Errorf("the event of a task that stopped: %v", err)
	}
}

// terminate sends SIGTERM to the task with an ARN.
func (s *wholeStack) terminate(arn string) {
	s.fake.mu.Lock()
	task := s.find(arn)
	stopping := task != nil && task.desired == "STOPPED"
	s.fake.mu.Unlock()
	if !stopping {
		return
	}
	s.live.Lock()
	m := s.machines[task.token]
	s.live.Unlock()
	m.cancel()
	if m.runner == nil {
		m.stop(128 + 15)
	}
}

// cable is one connection of a runner to the relay function.
type cable struct {
	m    *machine
	name string
	in   chan []byte
	gone chan struct{}
	once sync.Once
}

func (m *machine) dial(context.Context, string, http.Header) (runner.Conn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return nil, errors.New("dead")
	}
	m.conn = &cable{m: m, name: m.task.token, in: make(chan []byte, 1000), gone: make(chan struct{})}
	return m.conn, nil
}

func (c *cable) isDead() bool {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	return c.m.dead
}

// Send implements runner.Conn.
func (c *cable) Send(data []byte) error {
	if c.isDead() {
		return nil
	}
	go func() {
		reply, err := c.m.s.handler.Frame(context.Background(), c.name, data)
		if err != nil {
			c.m.s.t.Errorf("frame: %v", err)
		}
		f, _ := frametest.Decode(data)
		if f.Type == frame.TypeBye && c.m.first && c.m.s.dies == afterBye {
			c.m.kill()
		}
		if reply != nil {
			c.in <- reply
		}
	}()
	return nil
}

// Receive implements runner.Conn.
func (c *cable) Receive() ([]byte, error) {
	select {
	case data := <-c.in:
		return data, nil
	case <-c.gone:
		return nil, io.EOF
	}
}

// Close implements runner.Conn.
func (c *cable) Close(string) error {
	c.once.Do(func() { close(c.gone) })
	return nil
}

// Post implements storage.Poster. The gateway treats the connection of a killed task as
// open for another minute.
func (s *wholeStack) Post(_ context.Context, conn string, data []byte) error {
	s.live.Lock()
	m := s.machines[conn]
	s.live.Unlock()
	if m == nil {
		return storage.Errorf(storage.Closed, "nobody is connected")
	}
	s.fake.mu.Lock()
	over := m.task.status == "STOPPED" && time.Since(m.task.stopped) > time.Minute
	s.fake.mu.Unlock()
	m.mu.Lock()
	c := m.conn
	m.mu.Unlock()
	if over || c == nil {
		return storage.Errorf(storage.Closed, "the connection has gone")
	}
	c.in <- data
	return nil
}

// Deliver implements runner.Executor: it waits for the time that a call takes, and answers
// with {}.
func (m *machine) Deliver(d runner.Delivery) {
	message, err := wire.Parse(d.Raw)
	if err != nil || message.Kind != wire.Request {
		return
	}
	m.s.live.Lock()
	m.s.executed[string(d.ID)]++
	m.s.live.Unlock()
	m.mu.Lock()
	m.busy++
	m.mu.Unlock()
	go func() {
		if m.ends(inACall, callTakes/2) || !m.naps(callTakes) {
			return
		}
		m.runner.Event(runner.Event{
			Session: d.Session, Stream: d.ID, Ticket: d.Ticket, Final: true, Raw: wire.ResultResponse(message.ID, json.RawMessage("{}")),
		})
		m.mu.Lock()
		m.busy--
		m.last = time.Now()
		m.mu.Unlock()
		m.ends(idle, 10*time.Second)
	}()
}

// The rest of runner.Executor does nothing: no server here asks its client.

func (m *machine) Answer(storage.ID, string, []byte)        {}
func (m *machine) CloseStream(storage.ID, storage.StreamID) {}
func (*machine) Halt(storage.ID, string, time.Duration)     {}

func (m *machine) StopSession(storage.ID)             {}
func (m *machine) Questions() map[storage.ID][]string { return nil }
func (m *machine) IdleSince() (time.Time, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last, m.busy == 0
}

// call makes a call and waits for its end, as a polling client does.
func (s *wholeStack) call(ctx context.Context, n int) (string, error) {
	m, err := wire.Parse(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"x"}}`, n))
	if err != nil {
		return "", err
	}
	call, err := s.host.Accept(ctx, caller, s.id, []wire.Message{m}, false)
	if err != nil {
		return "", err
	}
	for {
		events, err := call.Next(ctx, time.Now().Add(25*time.Second))
		if err != nil {
			return "", err
		}
		if len(events) > 0 && call.Done() {
			return string(events[len(events)-1].Raw), nil
		}
	}
}

// settled fails the test if a task still runs or a request still waits.
func (s *wholeStack) settled() {
	s.t.Helper()
	s.fake.mu.Lock()
	for _, task := range s.tasks {
		if task.status != "STOPPED" {
			s.t.Errorf("task %s is still %s", task.token, task.status)
		}
	}
	s.fake.mu.Unlock()
	due, err := s.store.Due(s.t.Context())
	if err != nil || len(due) > 0 {
		s.t.Errorf("boxes that are awake or have items: %v, %v", due, err)
	}
	s.live.Lock()
	defer s.live.Unlock()
	for id, times := range s.executed {
		if times > 1 {
			s.t.Errorf("%s was executed %d times", id, times)
		}
	}
}

// inBubble runs a test on a stack with the schedule, and waits until everything has ended.
func inBubble(t *testing.T, test func(ctx context.Context, s *wholeStack)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := newWholeStack(t)
		go s.schedule(ctx)
		test(ctx, s)
		cancel()
		s.live.Lock()
		for _, m := range s.machines {
			m.cancel()
		}
		s.live.Unlock()
		synctest.Wait()
	})
}

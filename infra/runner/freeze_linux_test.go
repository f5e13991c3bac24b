package runner

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// gateOf is the variable with the pipe that the counting server reads before it answers a
// call of the tool hold.
const gateOf = "RUNNER_TEST_GATE"

// countingServer is an MCP server that answers each call with its process id and the number
// of calls so far.
func countingServer() {
	in := bufio.NewScanner(os.Stdin)
	for n := 0; in.Scan(); {
		m, err := wire.Parse(in.Bytes())
		if err != nil || m.Kind != wire.Request {
			continue
		}
		result := `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"counting","version":"1"}}`
		if m.Method == "tools/call" {
			n++
			if tool, _ := wire.String(wire.Lookup(m.Params, "name")); tool == "hold" {
				_, _ = os.ReadFile(os.Getenv(gateOf)) // until the test closes the pipe
			}
			result = fmt.Sprintf(`{"content":[{"type":"text","text":"{\"pid\":%d,\"n\":%d}"}]}`, os.Getpid(), n)
		}
		_, _ = fmt.Fprintf(os.Stdout, "%s\n", wire.ResultResponse(m.ID, []byte(result)))
	}
}

// icehouse is the real host of one session. It starts each generation of the box in an
// environment of its own.
type icehouse struct {
	t      *testing.T
	store  *storagetest.Memory
	config relayserver.Config
	host   *sessions.Manager
	gate   string
	idle   time.Duration // of the first generation

	mu    sync.Mutex
	since time.Time // when the place of the boxes began
	age   time.Duration
	conns map[string]*websocket.Conn
	heard []frametest.Frame // from runners
	envs  []environmentOf
}

// environmentOf is an environment with a runner.
type environmentOf struct {
	api      *lambdaStandIn
	function *exec.Cmd
}

const (
	iceSession = storage.ID("s1")
	iceBox     = storage.BoxID("t/counting")
)

func newIcehouse(t *testing.T) *icehouse {
	t.Helper()
	x := &icehouse{t: t, store: storagetest.NewMemory(), gate: filepath.Join(t.TempDir(), "gate"), idle: time.Minute, conns: map[string]*websocket.Conn{}}
	gateway := httptest.NewServer(http.HandlerFunc(x.connect))
	t.Cleanup(gateway.Close)
	sealer, err := relayserver.NewSealer(bytes.Repeat([]byte{9}, 32))
	commontest.OK(t, err)
	x.config = relayserver.Config{Store: x.store, Poster: x, Sealer: sealer, Fleet: x}
	x.config.Launch = func(b storage.Box) (map[string]string, error) {
		s := serversfile.Server{
			Name: "counting", Command: os.Args[0], Idle: time.Minute, StartupTimeout: time.Minute, ToolTimeout: time.Minute, AnswerTimeout: time.Minute,
			Env: map[string]string{invitedRole: "counting", gateOf: x.gate},
		}
		if b.Gen == 1 {
			s.Idle = x.idle
		}
		return map[string]string{"DORMOUSE_SERVER": s.Marshal(), frame.EnvRelayURL: "ws" + strings.TrimPrefix(gateway.URL, "http")}, nil
	}
	x.host = sessions.New(x.store, relayserver.NewBackend(x.config), sessions.Limits{})
	if err := errors.Join(unix.Mkfifo(x.gate, 0o600), x.store.Create(t.Context(), storage.Session{
		ID: iceSession, Server: "counting", Tenant: "t", Principal: "p", Transport: storage.HTTP, State: storage.Ready, Version: wire.V20251125,
		Init:   json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}`),
		Served: true, Expires: time.Now().Add(time.Hour),
	})); err != nil {
		t.Fatal(err)
	}
	return x
}

// connect is the relay function behind its gateway.
func (x *icehouse) connect(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	c.SetReadLimit(1 << 20)
	name := r.RemoteAddr
	x.mu.Lock()
	x.conns[name] = c
	x.mu.Unlock()
	defer func() {
		x.mu.Lock()
		delete(x.conns, name)
		x.mu.Unlock()
	}()
	for {
		_, data, err := c.Read(r.Context())
		if err != nil {
			return
		}
		f, err := frametest.Decode(data)
		if err != nil {
			x.t.Error(err)
		}
		x.mu.Lock()
		x.heard = append(x.heard, f)
		x.mu.Unlock()
		reply, err := relayserver.NewHandler(x.config).Frame(r.Context(), name, data)
		if err != nil {
			x.t.Errorf("%s: %v", f.Type, err)
		}
		if reply != nil && c.Write(r.Context(), websocket.MessageText, reply) != nil {
			return
		}
	}
}

// Post implements storage.Poster. Frames look as old as the test says.
func (x *icehouse) Post(ctx context.Context, conn string, data []byte) error {
	f, err := frame.Decode(data)
	if err != nil {
		return err
	}
	x.mu.Lock()
	c, age := x.conns[conn], x.age
	x.mu.Unlock()
	if c == nil {
		return storage.Closed
	}
	if d, ok := f.(frame.Deliver); ok {
		d.Sent -= age.Milliseconds()
		data = frame.Encode(d)
	}
	return c.Write(ctx, websocket.MessageText, data)
}

// Run implements fleet.Fleet.
func (x *icehouse) Run(_ context.Context, task fleet.Task) (string, error) {
	id, invitation, err := task.Invite("lambda")
	if err != nil {
		return "", err
	}
	api := newLambdaStandIn(x.t)
	e := environmentOf{api, newFunction(x.t, api)}
	x.mu.Lock()
	x.envs = append(x.envs, e)
	x.mu.Unlock()
	api.work <- invitation
	return id, nil
}

// Stop implements fleet.Fleet.
func (*icehouse) Stop(context.Context, string, string) error { return nil }

// Tasks implements fleet.Fleet.
func (*icehouse) Tasks(context.Context) ([]fleet.Status, error) { return nil, fleet.ErrUnlisted }

// Traits implements fleet.Fleet.
func (x *icehouse) Traits(string) fleet.Traits {
	x.mu.Lock()
	defer x.mu.Unlock()
	return fleet.Traits{Invites: true, StartTimeout: time.Minute, Since: x.since}
}

// begin calls a tool.
func (x *icehouse) begin(tool string) *sessions.Call {
	x.t.Helper()
	m, err := wire.Parse(wire.NewRequest(json.RawMessage("1"), "tools/call", []byte(`{"name":"`+tool+`"}`)))
	commontest.OK(x.t, err)
	c, err := x.host.Accept(x.t.Context(), sessions.Caller{Server: sessions.Server{Name: "counting"}, Tenant: "t", Principal: "p", Transport: storage.HTTP}, iceSession, []wire.Message{m}, false)
	commontest.OK(x.t, err)
	return c
}

// end waits for the end of a call.
func (x *icehouse) end(c *sessions.Call) wire.Message {
	x.t.Helper()
	events, err := c.Next(x.t.Context(), time.Now().Add(time.Minute))
	if err != nil || len(events) != 1 || !events[0].Final {
		x.t.Fatalf("the call ended with %v, %v", events, err)
	}
	m, err := wire.Parse(events[0].Raw)
	commontest.OK(x.t, err)
	return m
}

// counted is the answer of the counting server.
type counted struct{ PID, N int }

// counted waits for the answer to a call.
func (x *icehouse) counted(c *sessions.Call) (got counted) {
	x.t.Helper()
	m := x.end(c)
	var r struct{ Content []struct{ Text string } }
	if err := json.Unmarshal(m.Result, &r); err != nil || len(r.Content) != 1 || json.Unmarshal([]byte(r.Content[0].Text), &got) != nil {
		x.t.Fatalf("the call ended in %s", m.Raw)
	}
	return got
}

func (x *icehouse) environment(n int) environmentOf {
	x.t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.envs) <= n {
		x.t.Fatalf("%d environments were started", len(x.envs))
	}
	return x.envs[n]
}

// from returns the frames of a type that came from a generation.
func (x *icehouse) from(gen storage.Generation, kind frame.Type) (all []frametest.Frame) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, f := range x.heard {
		if f.Gen == gen && f.Type == kind {
			all = append(all, f)
		}
	}
	return all
}

// state is what a late frame could change.
type state struct {
	Box   storage.Box
	Items []storage.Item
	Held  []storage.Event
}

func (x *icehouse) state(held storage.StreamID) state {
	x.t.Helper()
	b, err := x.store.Box(x.t.Context(), iceBox)
	items, err2 := x.store.Items(x.t.Context(), iceBox)
	page, err3 := x.store.Read(x.t.Context(), iceSession, held, 0, 100)
	commontest.OK(x.t, errors.Join(err, err2, err3))
	return state{b, items, page.Events}
}

// settled waits until the box has no item left, and returns the state. An answer reaches
// its client before the host deletes the item of the call.
func (x *icehouse) settled(held storage.StreamID) state {
	x.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		s := x.state(held)
		if len(s.Items) == 0 {
			return s
		}
		if time.Now().After(deadline) {
			x.t.Fatalf("items %+v stay", s.Items)
		}
	}
}

// freeze stops an environment, which is a process and all below it. It returns when none of
// their threads runs. thaw lets them go on.
func freeze(t *testing.T, pid int) (thaw func()) {
	t.Helper()
	signal := func(s syscall.Signal) []int {
		all := append(below(t, pid), pid)
		for _, p := range all {
			if err := syscall.Kill(p, s); err != nil && !errors.Is(err, syscall.ESRCH) {
				t.Errorf("signal %s to process %d: %v", s, p, err)
			}
		}
		return all
	}
	thaw = func() { signal(syscall.SIGCONT) }
	t.Cleanup(thaw)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		stopped := signal(syscall.SIGSTOP)
		if still(stopped) && cmp.Equal(stopped, append(below(t, pid), pid)) {
			return thaw
		}
		if time.Now().After(deadline) {
			t.Fatalf("processes %v do not stop", stopped)
		}
	}
}

// still reports whether no thread of the processes runs.
func still(pids []int) bool {
	for _, pid := range pids {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(threads) == 0 {
			return false
		}
		for _, path := range threads {
			text, err := os.ReadFile(path)
			_, after, ok := strings.Cut(string(text[bytes.LastIndexByte(text, ')')+1:]), " ")
			if err != nil || !ok || !strings.ContainsAny(after[:1], "TZ") {
				return false
			}
		}
	}
	return true
}

// Messages that are posted to a frozen environment wait. By the clock of the thawed
// runner, such a message is an hour old. So the runner asks the host, which has not
// declared the box lost.
func TestAThawedBoxThatNobodyMissedGoesOn(t *testing.T) {
	x := newIcehouse(t)
	first := x.counted(x.begin("count"))
	thaw := freeze(t, x.environment(0).function.Process.Pid)
	x.mu.Lock()
	x.age = time.Hour
	x.mu.Unlock()
	call := x.begin("count")
	thaw()
	if got, want := x.counted(call), (counted{first.PID, 2}); got != want {
		t.Errorf("the thawed server answers %+v, want %+v", got, want)
	}
	asked := map[storage.StreamID]bool{}
	for _, f := range x.from(1, frame.TypeAsk) {
		asked[f.ID] = true
	}
	x.mu.Lock()
	started := len(x.envs)
	x.mu.Unlock()
	if len(asked) != 1 || started != 1 {
		t.Errorf("the runner asked about %d messages, and %d environments were started; want 1 and 1", len(asked), started)
	}
}

// While an environment is frozen in the middle of a call, its box is declared lost, and
// another generation runs in another environment.
func TestAThawedBoxThatWasReplacedIsFenced(t *testing.T) {
	x := newIcehouse(t)
	x.idle = time.Second
	held := x.begin("hold")
	gate, err := os.OpenFile(x.gate, os.O_WRONLY, 0) // returns when the server reads it
	commontest.OK(t, err)
	old := x.environment(0)
	thaw := freeze(t, old.function.Process.Pid)
	commontest.OK(t, gate.Close())
	x.mu.Lock()
	x.since = time.Now()
	x.mu.Unlock()
	commontest.OK(t, relayserver.NewSweeper(x.config).Sweep(t.Context()))
	if m := x.end(held); !strings.Contains(string(m.Error), "is not known") {
		t.Errorf("the call of the lost box ended in %s", m.Raw)
	}
	x.mu.Lock()
	x.since = time.Time{}
	x.mu.Unlock()
	second := x.counted(x.begin("count"))
	if second.N != 1 {
		t.Errorf("the other environment counts %d", second.N)
	}
	before := x.settled(held.Cursor().Stream)
	thaw()
	if end := old.api.end(t); end.ExitCode != exitFenced {
		t.Errorf("the thawed runner ended with %+v, want exit code %d", end, exitFenced)
	}
	if left := below(t, old.function.Process.Pid); len(left) > 0 {
		t.Errorf("processes %v are left of the thawed box", left)
	}
	if events, byes := x.from(1, frame.TypeEvents), x.from(1, frame.TypeBye); len(events) == 0 || len(byes) == 0 {
		t.Errorf("the thawed runner sent %d batches of events and %d byes, want some of both", len(events), len(byes))
	}
	if diff := cmp.Diff(before, x.state(held.Cursor().Stream)); diff != "" {
		t.Errorf("the frames of the thawed runner changed (-before +after):\n%s", diff)
	}
	if got, want := x.counted(x.begin("count")), (counted{second.PID, 2}); got != want {
		t.Errorf("the box answers %+v, want %+v", got, want)
	}
}

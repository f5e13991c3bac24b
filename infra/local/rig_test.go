package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
)

// patience is far beyond what any step takes; who runs out of it hangs.
const patience = 20 * time.Second

// build is where TestMain lets the test function's program be made, once.
var build struct {
	dir  string
	once sync.Once
	err  error
}

func TestMain(m *testing.M) {
	if arg := os.Getenv(emulatorEnv); arg != "" {
		fmt.Fprintln(os.Stderr, emulate(arg))
		os.Exit(1)
	}
	dir, err := os.MkdirTemp("", "echofn")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	build.dir = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func echoProgram(t testing.TB) string {
	t.Helper()
	program := filepath.Join(build.dir, "echofn")
	build.once.Do(func() {
		out, err := exec.Command("go", "build", "-o", program, "./testdata/echofn").CombinedOutput() //nolint:noctx // outlives the test that comes first
		if err != nil {
			build.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	if build.err != nil {
		t.Fatal(build.err)
	}
	return program
}

// rig is a pool of one function, "echo", whose program is testdata/echofn.
type rig struct {
	t      testing.TB
	pool   *Pool
	events chan Event
	socket string

	mu    sync.Mutex
	pids  map[int]bool
	lines []string
}

// newRig starts a pool in which no process sleeps unless change says so. At the end
// of the test it closes it and checks that no process is left.
func newRig(t testing.TB, change func(*PoolConfig)) *rig {
	t.Helper()
	r := &rig{t: t, events: make(chan Event, 1000), pids: map[int]bool{}, socket: filepath.Join(t.TempDir(), "s")}
	cfg := PoolConfig{
		Socket: r.socket, SleepAfter: time.Hour, Recorder: NewRecorder(r.note), Output: r.line,
		Functions: []FunctionConfig{{Name: "echo", Path: echoProgram(t), Timeout: patience}},
	}
	if os.Getenv("ECHO_LOOP") != "" {
		cfg.Env = append(cfg.Env, "ECHO_LOOP=1")
	}
	if change != nil {
		change(&cfg)
	}
	pool, err := NewPool(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.pool = pool
	t.Cleanup(r.close)
	return r
}

func (r *rig) note(e Event) {
	if e.PID != 0 {
		r.mu.Lock()
		r.pids[e.PID] = true
		r.mu.Unlock()
	}
	select {
	case r.events <- e:
	default: // a benchmark that nobody watches
	}
}

func (r *rig) line(function, line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, function+": "+line)
}

func (r *rig) close() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), patience)
	defer cancel()
	if err := r.pool.Close(ctx); err != nil {
		r.t.Errorf("Close: %v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for pid := range r.pids {
		if alive(pid) {
			r.t.Errorf("process %d is alive after Close", pid)
		}
	}
}

func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// await returns the next event of the kind and passes over all others.
func (r *rig) await(kind string) Event {
	r.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case e := <-r.events:
			if e.Kind == kind {
				return e
			}
		case <-timeout:
			r.t.Fatalf("no event %s; the pool: %+v", kind, r.pool.Status())
		}
	}
}

// settled waits until the function has n idle polls and nothing coming, which is
// the end of what an answer leaves to do.
func (r *rig) settled(n int) {
	r.t.Helper()
	f := r.pool.functions["echo"]
	eventually(r.t, fmt.Sprintf("%d idle polls", n), func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.idle) == n && f.coming == 0
	})
}

// eventually looks until a condition on real processes holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	timeout := time.After(patience)
	for !holds() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}

func (r *rig) instances() []InstanceStatus { return r.pool.Status()[0].Instances }

// reply is an answer read to its end.
type reply struct {
	status  int
	headers map[string]string
	body    string
	failed  *FunctionError
	readErr error
	err     error
}

func (r reply) pid(t testing.TB) int {
	t.Helper()
	pid, err := strconv.Atoi(r.headers["X-Pid"])
	if err != nil {
		t.Fatalf("no answer of a process: %+v", r)
	}
	return pid
}

// query makes "mode", "gate" … of pairs.
func query(pairs ...string) map[string]string {
	q := map[string]string{}
	for k := 0; k+1 < len(pairs); k += 2 {
		q[pairs[k]] = pairs[k+1]
	}
	return q
}

func payload(t testing.TB, body string, q map[string]string) []byte {
	t.Helper()
	raw, err := json.Marshal(events.APIGatewayProxyRequest{HTTPMethod: "POST", Path: "/x", Body: body, QueryStringParameters: q})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func (r *rig) call(pairs ...string) reply {
	r.t.Helper()
	return r.invoke(r.t.Context(), "hello", query(pairs...))
}

func (r *rig) invoke(ctx context.Context, body string, q map[string]string) reply {
	r.t.Helper()
	inv, err := r.pool.Invoke(ctx, "echo", payload(r.t, body, q))
	if err != nil {
		return reply{err: err}
	}
	return finish(inv)
}

// begin invokes in the background.
func (r *rig) begin(pairs ...string) <-chan reply {
	done := make(chan reply, 1)
	p := payload(r.t, "hello", query(pairs...))
	ctx := r.t.Context()
	go func() {
		inv, err := r.pool.Invoke(ctx, "echo", p)
		if err != nil {
			done <- reply{err: err}
			return
		}
		done <- finish(inv)
	}()
	return done
}

func finish(inv *Invocation) reply {
	defer func() { _ = inv.Body.Close() }()
	if inv.Failed != nil {
		return reply{failed: inv.Failed}
	}
	if inv.ContentType != streamingType {
		raw, err := io.ReadAll(inv.Body)
		return reply{body: string(raw), readErr: err}
	}
	buf := make([]byte, streamBuffer)
	head, first, err := readPrelude(inv.Body, buf)
	if err != nil {
		return reply{readErr: err}
	}
	got := reply{status: head.StatusCode, headers: head.Headers}
	rest, err := io.ReadAll(inv.Body)
	got.body, got.readErr = string(first)+string(rest), err
	return got
}

func wait[T any](t testing.TB, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatal("waited in vain")
		panic("unreachable")
	}
}

// gate is where held invocations arrive and wait to be let through.
type gate struct {
	t    testing.TB
	path string
	in   chan net.Conn
}

func newGate(t testing.TB) *gate {
	t.Helper()
	g := &gate{t: t, path: filepath.Join(t.TempDir(), "g"), in: make(chan net.Conn, 100)}
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "unix", g.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			g.in <- conn
		}
	}()
	return g
}

// arrival returns when one more invocation is held.
func (g *gate) arrival() *held {
	g.t.Helper()
	conn := wait(g.t, g.in)
	g.t.Cleanup(func() { _ = conn.Close() })
	return &held{t: g.t, conn: conn}
}

type held struct {
	t    testing.TB
	conn net.Conn
}

func (h *held) pass() {
	h.t.Helper()
	if _, err := h.conn.Write([]byte{1}); err != nil {
		h.t.Fatal(err)
	}
}

func pidsOf(list []InstanceStatus) []int {
	var pids []int
	for _, i := range list {
		pids = append(pids, i.PID)
	}
	slices.Sort(pids)
	return pids
}

// emulatorEnv makes the test program an emulator with one busy function, whose
// process id it prints: "socket:program".
const emulatorEnv = "LOCAL_TEST_EMULATOR"

func emulate(arg string) error {
	socket, program, _ := strings.Cut(arg, ":")
	pool, err := NewPool(PoolConfig{Socket: socket, Functions: []FunctionConfig{{Name: "echo", Path: program, Timeout: patience}}})
	if err != nil {
		return err
	}
	inv, err := pool.Invoke(context.Background(), "echo", []byte(`{"queryStringParameters":{"mode":"echo"}}`))
	if err != nil {
		return err
	}
	pid := finish(inv).headers["X-Pid"]
	go func() {
		_, _ = pool.Invoke(context.Background(), "echo", []byte(`{"queryStringParameters":{"mode":"slow"}}`))
	}()
	for pool.Status()[0].Invoked < 2 {
		runtime.Gosched()
	}
	if _, err := os.Stdout.WriteString(pid + "\n"); err != nil {
		return err
	}
	select {}
}

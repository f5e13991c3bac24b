package lambda

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
)

func TestMain(m *testing.M) {
	if program := os.Getenv(emulatorEnv); program != "" {
		fmt.Fprintln(os.Stderr, emulate(program))
		os.Exit(1)
	}
	os.Exit(localtest.Main(m))
}

// rig is a pool of one function, "echo", whose program is [localtest.EchoProgram].
type rig struct {
	t      testing.TB
	pool   *Pool
	events chan journal.Event

	mu    sync.Mutex
	pids  map[int]bool
	lines []string
}

// newRig starts a pool in which no process sleeps, unless change sets that. At the
// end of the test it closes the pool and checks that every process has ended.
func newRig(t testing.TB, change func(*PoolConfig)) *rig {
	t.Helper()
	r := &rig{t: t, events: make(chan journal.Event, 1000), pids: map[int]bool{}}
	cfg := PoolConfig{
		SleepAfter: time.Hour, Recorder: journal.NewRecorder(r.note), Output: r.line,
		Functions: []FunctionConfig{{Name: "echo", Path: localtest.EchoProgram(t), Timeout: localtest.Patience}},
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

func (r *rig) note(e journal.Event) {
	if e.PID != 0 {
		r.mu.Lock()
		r.pids[e.PID] = true
		r.mu.Unlock()
	}
	select {
	case r.events <- e:
	default: // a benchmark, which reads no events
	}
}

func (r *rig) line(function, line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, function+": "+line)
}

func (r *rig) close() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), localtest.Patience)
	defer cancel()
	if err := r.pool.Close(ctx); err != nil {
		r.t.Errorf("Close: %v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for pid := range r.pids {
		if localtest.Alive(pid) {
			r.t.Errorf("process %d is alive after Close", pid)
		}
	}
}

// await returns the next event of the kind and skips all others.
func (r *rig) await(kind string) journal.Event {
	r.t.Helper()
	timeout := time.After(localtest.Patience)
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

// settled waits until n processes are idle and none is coming. The work after an answer is
// done by then.
func (r *rig) settled(n int) {
	r.t.Helper()
	f := r.pool.functions["echo"]
	localtest.Eventually(r.t, fmt.Sprintf("%d idle processes", n), func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.those(StateIdle) == n && f.coming("") == 0
	})
}

func (r *rig) instances() []InstanceStatus { return r.pool.Status()[0].Instances }

// reply is an answer that was read to its end.
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

func (r *rig) call(pairs ...string) reply {
	r.t.Helper()
	return r.invoke(r.t.Context(), "hello", localtest.Query(pairs...))
}

func (r *rig) invoke(ctx context.Context, body string, q map[string]string) reply {
	r.t.Helper()
	inv, err := r.pool.Invoke(ctx, "echo", localtest.Payload(r.t, body, q))
	if err != nil {
		return reply{err: err}
	}
	return finish(inv)
}

// begin invokes in the background.
func (r *rig) begin(pairs ...string) <-chan reply {
	done := make(chan reply, 1)
	p := localtest.Payload(r.t, "hello", localtest.Query(pairs...))
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
	var got reply
	if inv.ContentType == "application/vnd.awslambda.http-integration-response" {
		head, err := localtest.ReadHead(inv.Body)
		if err != nil {
			return reply{readErr: err}
		}
		got.status, got.headers = head.StatusCode, head.Headers
	}
	raw, err := io.ReadAll(inv.Body)
	got.body, got.readErr = string(raw), err
	return got
}

func pidsOf(list []InstanceStatus) []int {
	var pids []int
	for _, i := range list {
		pids = append(pids, i.PID)
	}
	slices.Sort(pids)
	return pids
}

// emulatorEnv makes the test program an emulator with one busy function of this program.
// It prints the process id of the function.
const emulatorEnv = "LOCAL_TEST_EMULATOR"

func emulate(program string) error {
	pool, err := NewPool(PoolConfig{Functions: []FunctionConfig{{Name: "echo", Path: program, Timeout: localtest.Patience}}})
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
	if _, err := os.Stdout.WriteString(strings.TrimSpace(pid) + "\n"); err != nil {
		return err
	}
	select {}
}

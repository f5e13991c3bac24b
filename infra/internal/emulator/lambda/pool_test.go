package lambda

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
)

func TestOneCallerNeedsOneProcess(t *testing.T) {
	r := newRig(t, nil)
	first := r.call("mode", "echo").pid(t)
	// Each call comes before the process has asked for its next invocation.
	for range 50 {
		if pid := r.call("mode", "echo").pid(t); pid != first {
			t.Fatalf("process %d answered, want %d again", pid, first)
		}
	}
	if s := r.pool.Status()[0]; s.Invoked != 51 || s.Failed != 0 {
		t.Errorf("counters: %+v", s)
	}
}

func TestTooManyInvocationsAreThrottledAndDoNotWait(t *testing.T) {
	r := newRig(t, func(c *PoolConfig) { c.Functions[0].MaxInstances = 1 })
	g := localtest.NewGate(t)
	first := r.begin("mode", "hold", "gate", g.Path)
	held := g.Arrival()
	if got := r.call("mode", "echo"); !errors.Is(got.err, ErrThrottled) {
		t.Fatalf("second invocation: %+v, want ErrThrottled", got)
	}
	held.Pass()
	localtest.Wait(t, first)
	if got := r.call("mode", "echo"); got.body != "hello" {
		t.Fatalf("after the first has ended: %+v", got)
	}
}

// TestEveryInvocationEndsWhateverIsKilled kills processes at random moments, even before
// they are ready.
func TestEveryInvocationEndsWhateverIsKilled(t *testing.T) {
	r := newRig(t, func(c *PoolConfig) { c.Functions[0].MaxInstances = 4 })
	var callers, killer sync.WaitGroup
	over := make(chan struct{})
	killer.Go(func() {
		dice := rand.New(rand.NewPCG(1, 2))
		for {
			select {
			case <-over:
				return
			case <-time.After(time.Duration(dice.IntN(5)) * time.Millisecond): // the pace of the damage
			}
			if list := r.instances(); len(list) > 0 {
				if pid := list[dice.IntN(len(list))].PID; pid != 0 {
					_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended meanwhile
				}
			}
		}
	})
	p := localtest.Payload(t, "hello", localtest.Query("mode", "echo"))
	var whole, broken atomic.Int32
	for range 4 {
		callers.Go(func() {
			for range 100 {
				inv, err := r.pool.Invoke(t.Context(), "echo", p)
				if err != nil {
					t.Errorf("Invoke: %v", err)
					return
				}
				got := finish(inv)
				var failure *FunctionError
				switch {
				case got.body == "hello" && got.readErr == nil:
					whole.Add(1)
				case got.failed != nil && got.failed.Type == ErrorExit, errors.As(got.readErr, &failure) && failure.Type == ErrorExit:
					broken.Add(1)
				default:
					t.Errorf("neither answered nor failed: %+v", got)
				}
			}
		})
	}
	callers.Wait()
	close(over)
	killer.Wait()
	t.Logf("%d answered, %d failed", whole.Load(), broken.Load())
	if whole.Load() == 0 {
		t.Error("nothing was answered")
	}
	f := r.pool.functions["echo"]
	localtest.Eventually(t, "nothing to wait for", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.waiting) == 0 && f.those(StateIdle) == len(f.instances)
	})
	// The pool may give a call to the last killed process before it sees the end of that
	// process.
	localtest.Eventually(t, "an answer afterwards", func() bool { return r.call("mode", "echo").body == "hello" })
}

func TestCallerThatLeavesDoesNotStopTheFunction(t *testing.T) {
	r, g := newRig(t, nil), localtest.NewGate(t)
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	// The answer is longer than any buffer between the process and its caller.
	p := localtest.Payload(t, strings.Repeat("x", 1<<20), localtest.Query("mode", "hold", "gate", g.Path))
	go func() {
		_, err := r.pool.Invoke(ctx, "echo", p)
		done <- err
	}()
	held := g.Arrival()
	pid := r.instances()[0].PID
	leave()
	if err := localtest.Wait(t, done); !errors.Is(err, context.Canceled) {
		t.Fatalf("Invoke: %v, want context.Canceled", err)
	}
	held.Pass()
	r.settled(1)
	if got := r.call("mode", "echo").pid(t); got != pid {
		t.Fatalf("process %d answered, want %d: it has ended its work and is free", got, pid)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	r, g := newRig(t, nil), localtest.NewGate(t)
	child, err := strconv.Atoi(r.call("mode", "child").body)
	if err != nil {
		t.Fatal(err)
	}
	done := r.begin("mode", "hold", "gate", g.Path)
	g.Arrival()
	stream, err := r.pool.Invoke(t.Context(), "echo", localtest.Payload(t, "", localtest.Query("mode", "stream", "n", "2", "gate", g.Path)))
	if err != nil {
		t.Fatal(err)
	}
	pids := pidsOf(r.instances())
	if len(pids) != 2 || !localtest.Alive(child) {
		t.Fatalf("instances %v, child localtest.Alive %t", pids, localtest.Alive(child))
	}

	ctx, cancel := context.WithTimeout(t.Context(), localtest.Patience)
	defer cancel()
	if err := r.pool.Close(ctx); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if localtest.Alive(pid) {
			t.Errorf("process %d is alive", pid)
		}
	}
	// The init process reaps the function's own child later.
	localtest.Eventually(t, "the child to end", func() bool { return !localtest.Alive(child) })
	if got := localtest.Wait(t, done); got.failed == nil || !strings.Contains(got.failed.Message, "signal: terminated") {
		t.Errorf("invocation under way: %+v (%v)", got, got.failed)
	}
	var failure *FunctionError
	if got := finish(stream); !errors.As(got.readErr, &failure) {
		t.Errorf("stream under way: %+v", got)
	}
	if got := r.call("mode", "echo"); !errors.Is(got.err, ErrClosed) {
		t.Errorf("invocation after Close: %+v", got)
	}
	if conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", r.pool.listener.Addr().String()); err == nil {
		_ = conn.Close()
		t.Error("the Runtime API is still open")
	}
}

func TestRenewReplacesProcessesAndLetsThemAnswerFirst(t *testing.T) {
	r, g := newRig(t, func(c *PoolConfig) { c.Env = []string{"WORD=one"} }), localtest.NewGate(t)
	a := r.begin("mode", "hold", "gate", g.Path)
	held := g.Arrival()
	idle := r.call("mode", "env")
	r.settled(1)
	r.pool.Renew([]string{"WORD=two"})
	if e := r.await(FunctionSleep); e.PID != idle.pid(t) {
		t.Errorf("first to end is %+v, want the idle process", e)
	}
	if got := r.call("mode", "env"); !strings.Contains(idle.body, `"WORD=one"`) || !strings.Contains(got.body, `"WORD=two"`) {
		t.Errorf("before: %+v, after: %+v", idle, got)
	}
	held.Pass()
	busy := localtest.Wait(t, a)
	if busy.body != "hello" {
		t.Fatalf("the process that was at work answers %+v", busy)
	}
	if e := r.await(FunctionSleep); e.PID != busy.pid(t) {
		t.Errorf("then %+v ends, want the busy process", e)
	}
	r.settled(1)
}

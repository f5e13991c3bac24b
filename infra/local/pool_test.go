package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestNoProcessBeforeTheFirstInvocation(t *testing.T) {
	r := newRig(t, nil)
	if got := r.pool.Status(); len(got) != 1 || got[0].Name != "echo" || len(got[0].Instances) != 0 {
		t.Fatalf("status before the first invocation: %+v", got)
	}
	got := r.call("mode", "echo")
	if got.body != "hello" || got.status != 200 {
		t.Fatalf("answer: %+v", got)
	}
	wake, ready := r.await(FunctionWake), r.await(FunctionReady)
	if wake.Name != "echo" || wake.PID != got.pid(t) || wake.Running != 1 {
		t.Errorf("wake: %+v", wake)
	}
	if ready.PID != wake.PID || ready.Duration <= 0 {
		t.Errorf("ready: %+v", ready)
	}
	r.settled(1)
	i := r.instances()
	if len(i) != 1 || i[0].PID != wake.PID || i[0].State != StateIdle || i[0].Invocations != 1 || i[0].Since.IsZero() {
		t.Errorf("instances: %+v", i)
	}
}

func TestOneCallerNeedsOneProcess(t *testing.T) {
	r := newRig(t, nil)
	first := r.call("mode", "echo").pid(t)
	// Each call comes while the process is still on its way back from the last one.
	for range 50 {
		if pid := r.call("mode", "echo").pid(t); pid != first {
			t.Fatalf("process %d answered, want %d again", pid, first)
		}
	}
	if s := r.pool.Status()[0]; s.Invoked != 51 || s.Failed != 0 || s.Billed < 51*time.Millisecond {
		t.Errorf("counters: %+v", s)
	}
}

func TestProcessUsedLastIsUsedFirst(t *testing.T) {
	r, g := newRig(t, nil), newGate(t)
	a := r.begin("mode", "hold", "gate", g.path)
	heldA := g.arrival()
	b := r.begin("mode", "hold", "gate", g.path)
	heldB := g.arrival()
	heldB.pass()
	pidB := wait(t, b).pid(t)
	r.settled(1)
	heldA.pass()
	pidA := wait(t, a).pid(t)
	r.settled(2)
	if pidA == pidB {
		t.Fatal("two invocations at once in one process")
	}
	for range 3 {
		if pid := r.call("mode", "echo").pid(t); pid != pidA {
			t.Fatalf("process %d answered, want %d, which was used last", pid, pidA)
		}
		r.settled(2)
	}
}

func TestIdleProcessSleeps(t *testing.T) {
	r := newRig(t, func(c *PoolConfig) { c.SleepAfter = 50 * time.Millisecond })
	pid := r.call("mode", "echo").pid(t)
	sleep := r.await(FunctionSleep)
	if sleep.PID != pid || sleep.Duration < 50*time.Millisecond || sleep.Running != 0 {
		t.Errorf("sleep: %+v", sleep)
	}
	if count := r.await(ProcessCount); count.Running != 0 {
		t.Errorf("count: %+v", count)
	}
	if alive(pid) || len(r.instances()) != 0 {
		t.Errorf("process %d: alive %t, instances %+v", pid, alive(pid), r.instances())
	}
	if again := r.call("mode", "echo"); again.body != "hello" || again.pid(t) == pid {
		t.Errorf("after the sleep: %+v", again)
	}
}

func TestBusyProcessDoesNotSleep(t *testing.T) {
	r := newRig(t, func(c *PoolConfig) {
		c.SleepAfter = 20 * time.Millisecond
		other := c.Functions[0]
		other.Name = "other"
		c.Functions = append(c.Functions, other)
	})
	g := newGate(t)
	busy := r.begin("mode", "hold", "gate", g.path)
	held := g.arrival()
	for range 3 { // three times as long as an idle process has
		inv, err := r.pool.Invoke(t.Context(), "other", payload(t, "", query("mode", "echo")))
		if err != nil {
			t.Fatal(err)
		}
		finish(inv)
		if e := r.await(FunctionSleep); e.Name != "other" {
			t.Fatalf("asleep while busy: %+v", e)
		}
	}
	released := time.Now()
	held.pass()
	if got := wait(t, busy); got.body != "hello" {
		t.Fatalf("answer: %+v", got)
	}
	if e := r.await(FunctionSleep); e.Name != "echo" || e.Time.Sub(released) < 20*time.Millisecond {
		t.Fatalf("asleep %s after its work: %+v", e.Time.Sub(released), e)
	}
}

func TestProcessThatIgnoresSIGTERMIsKilledAfterTheGrace(t *testing.T) {
	r := newRig(t, func(c *PoolConfig) {
		c.SleepAfter, c.StopGrace = 20*time.Millisecond, 30*time.Millisecond
		c.Functions[0].Env = []string{"ECHO_TERM=ignore"}
	})
	pid := r.call("mode", "echo").pid(t)
	if e := r.await(FunctionSleep); e.PID != pid || e.Duration < 50*time.Millisecond || alive(pid) {
		t.Fatalf("%+v, alive %t", e, alive(pid))
	}
}

func TestFunctionThatAsksForSIGTERMGetsIt(t *testing.T) {
	r := newRig(t, func(c *PoolConfig) {
		c.SleepAfter, c.StopGrace = 20*time.Millisecond, patience
		c.Functions[0].Env = []string{"ECHO_TERM=handle"}
	})
	r.call("mode", "echo")
	r.await(FunctionSleep)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.lines, "echo: told to end") {
		t.Fatalf("lines: %q", r.lines)
	}
}

func TestSixteenAtOnceGetSixteenProcesses(t *testing.T) {
	r, g := newRig(t, nil), newGate(t)
	var replies []<-chan reply
	for range 16 {
		replies = append(replies, r.begin("mode", "hold", "gate", g.path))
	}
	var all []*held
	for range 16 {
		all = append(all, g.arrival())
	}
	if got := r.instances(); len(got) != 16 {
		t.Fatalf("%d instances, want 16", len(got))
	} else {
		for _, i := range got {
			if i.State != StateBusy {
				t.Errorf("instance %+v, want busy", i)
			}
		}
	}
	if n := r.pool.cfg.Recorder.Running(); n != 16 {
		t.Errorf("%d processes recorded, want 16", n)
	}
	for _, h := range all {
		h.pass()
	}
	pids := map[int]bool{}
	for _, c := range replies {
		pids[wait(t, c).pid(t)] = true
	}
	if len(pids) != 16 {
		t.Errorf("%d processes answered, want 16", len(pids))
	}
}

func TestBurstNeedsNoMoreProcessesThanCallers(t *testing.T) {
	r := newRig(t, nil)
	for range 20 {
		var replies []<-chan reply
		for range 4 {
			replies = append(replies, r.begin("mode", "echo"))
		}
		for _, c := range replies {
			if got := wait(t, c); got.body != "hello" {
				t.Fatalf("answer: %+v", got)
			}
		}
	}
	if n := len(r.instances()); n > 4 {
		t.Fatalf("%d processes for 4 callers", n)
	}
}

func TestTooManyInvocationsAreThrottledAndDoNotWait(t *testing.T) {
	r := newRig(t, func(c *PoolConfig) { c.Functions[0].MaxInstances = 1 })
	g := newGate(t)
	first := r.begin("mode", "hold", "gate", g.path)
	held := g.arrival()
	if got := r.call("mode", "echo"); !errors.Is(got.err, ErrThrottled) {
		t.Fatalf("second invocation: %+v, want ErrThrottled", got)
	}
	held.pass()
	wait(t, first)
	if got := r.call("mode", "echo"); got.body != "hello" {
		t.Fatalf("after the first has ended: %+v", got)
	}
	if n := r.pool.Status()[0].Throttled; n != 1 {
		t.Errorf("throttled %d, want 1", n)
	}
}

func TestConcurrencyLetsOneProcessTakeSeveral(t *testing.T) {
	r := newRig(t, func(c *PoolConfig) { c.Functions[0].Concurrency = 4 })
	g := newGate(t)
	var replies []<-chan reply
	for range 5 {
		replies = append(replies, r.begin("mode", "hold", "gate", g.path))
	}
	var all []*held
	for range 5 {
		all = append(all, g.arrival())
	}
	if n := len(r.instances()); n != 2 {
		t.Fatalf("%d processes for 5 invocations of which 4 share one, want 2", n)
	}
	for _, h := range all {
		h.pass()
	}
	pids := map[int]int{}
	for _, c := range replies {
		pids[wait(t, c).pid(t)]++
	}
	if len(pids) != 2 {
		t.Fatalf("invocations by process: %v", pids)
	}
}

func TestEndOfAProcessFailsItsInvocationOnly(t *testing.T) {
	tests := []struct {
		name, mode   string
		kind, detail string // of the failure, of the event
		message      string
	}{
		{"exit", "crash", ErrorExit, "exit status 3", "Runtime exited with error: exit status 3"},
		{"panic", "panic", "string", "exit status 1", "no way on"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil)
			pid := r.call("mode", "echo").pid(t)
			got := r.call("mode", tt.mode)
			if got.failed == nil || got.failed.Type != tt.kind || !strings.Contains(got.failed.Message, tt.message) ||
				got.failed.Function != "echo" || got.failed.RequestID == "" {
				t.Fatalf("failure: %+v (%v)", got, got.failed)
			}
			if e := r.await(FunctionCrash); e.PID != pid || e.Detail != tt.detail {
				t.Errorf("event: %+v", e)
			}
			if again := r.call("mode", "echo"); again.body != "hello" || again.pid(t) == pid {
				t.Errorf("next invocation: %+v", again)
			}
		})
	}
}

func TestKilledProcess(t *testing.T) {
	t.Run("busy", func(t *testing.T) {
		r, g := newRig(t, nil), newGate(t)
		done := r.begin("mode", "hold", "gate", g.path)
		g.arrival()
		pid := r.instances()[0].PID
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		got := wait(t, done)
		if got.failed == nil || got.failed.Type != ErrorExit || !strings.Contains(got.failed.Message, "signal: killed") {
			t.Fatalf("failure: %+v (%v)", got, got.failed)
		}
		if e := r.await(FunctionCrash); e.Detail != "signal: killed" {
			t.Errorf("event: %+v", e)
		}
	})
	t.Run("idle", func(t *testing.T) {
		r := newRig(t, nil)
		for range 10 {
			pid := r.call("mode", "echo").pid(t)
			r.settled(1)
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			// At once, while the pool still takes the process for idle.
			got := r.call("mode", "echo")
			if got.failed != nil && strings.Contains(got.failed.Message, "signal: killed") {
				// It was written to the socket before the kernel closed it: nobody can
				// tell whether the process has read it.
				continue
			}
			if got.body != "hello" || got.pid(t) == pid {
				t.Fatalf("after the kill: %+v (%v)", got, got.failed)
			}
		}
	})
}

func TestUndeliveredInvocationGoesToAnotherProcess(t *testing.T) {
	r := newRig(t, nil)
	pid := r.call("mode", "echo").pid(t)
	r.settled(1)
	f := r.pool.functions["echo"]

	// The moment between assignment and delivery, held open.
	inv := newInvocation(f, payload(t, "hello", query("mode", "echo")))
	f.mu.Lock()
	for i := range f.instances {
		f.assign(inv, i)
	}
	f.mu.Unlock()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	got := wait(t, inv.result)
	if got.err != nil {
		t.Fatal(got.err)
	}
	if answer := finish(got.answer); answer.body != "hello" || answer.pid(t) == pid {
		t.Fatalf("answer: %+v", answer)
	}
}

// TestEveryInvocationEndsWhateverIsKilled kills processes at random moments of their
// lives, also before they are ready.
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
	p := payload(t, "hello", query("mode", "echo"))
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
	eventually(t, "nothing to wait for", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.coming == 0 && len(f.waiting) == 0 && f.live == len(f.instances) && len(f.idle) == f.live
	})
	if got := r.call("mode", "echo"); got.body != "hello" {
		t.Errorf("afterwards: %+v", got)
	}
}

func TestReportedErrorLeavesTheProcess(t *testing.T) {
	r := newRig(t, nil)
	pid := r.call("mode", "echo").pid(t)
	got := r.call("mode", "error")
	want := &FunctionError{Function: "echo", Type: "errorString", Message: "it went wrong"}
	if got.failed == nil {
		t.Fatalf("no failure: %+v", got)
	}
	want.RequestID = got.failed.RequestID
	if diff := cmp.Diff(want, got.failed); diff != "" {
		t.Error(diff)
	}
	if again := r.call("mode", "echo").pid(t); again != pid {
		t.Errorf("process %d answered next, want %d", again, pid)
	}
	if s := r.pool.Status()[0]; s.Failed != 1 {
		t.Errorf("counters: %+v", s)
	}
}

func TestTimeoutKillsTheProcess(t *testing.T) {
	r := newRig(t, func(c *PoolConfig) { c.Functions[0].Timeout = 500 * time.Millisecond })
	pid := r.call("mode", "echo").pid(t)
	got := r.call("mode", "slow")
	if got.failed == nil || got.failed.Type != ErrorTimeout || !strings.HasSuffix(got.failed.Message, "Task timed out after 0.50 seconds") {
		t.Fatalf("failure: %+v (%v)", got, got.failed)
	}
	if e := r.await(FunctionCrash); e.PID != pid || e.Detail != "timed out after 500ms (signal: killed)" {
		t.Errorf("event: %+v", e)
	}
	if again := r.call("mode", "echo"); again.body != "hello" {
		t.Errorf("next invocation: %+v", again)
	}
}

func TestProcessThatAnswersButAsksForNothingMoreIsKilled(t *testing.T) {
	r := newRig(t, func(c *PoolConfig) { c.Functions[0].Timeout = 500 * time.Millisecond })
	got := r.call("mode", "linger")
	if got.body != "answered" {
		t.Fatalf("answer: %+v", got)
	}
	// It waits for the process on its way back, and gets another one.
	if next := r.call("mode", "echo"); next.body != "hello" || next.pid(t) == got.pid(t) {
		t.Fatalf("next invocation: %+v", next)
	}
	if e := r.await(FunctionCrash); e.PID != got.pid(t) {
		t.Errorf("event: %+v", e)
	}
	if s := r.pool.Status()[0]; s.Failed != 0 {
		t.Errorf("the answered invocation counts as failed: %+v", s)
	}
}

func TestFailureBeforeTheFirstInvocation(t *testing.T) {
	tests := []struct {
		name          string
		env, program  string
		kind, message string
	}{
		{name: "exits", env: "ECHO_INIT=exit", kind: ErrorExit, message: "exit status 7"},
		{name: "reports", env: "ECHO_INIT=report", kind: "Config.Missing", message: "no table name"},
		{name: "reports and stays", env: "ECHO_INIT=report-stay", kind: "Config.Missing", message: "no table name"},
		{name: "hangs", env: "ECHO_INIT=hang", kind: ErrorTimeout, message: "did not ask for an invocation within 200ms"},
		{name: "is not there", program: "/does/not/exist", kind: ErrorStart, message: "no such file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, func(c *PoolConfig) {
				if tt.env != "" {
					c.Functions[0].Env = []string{tt.env}
				}
				if tt.name == "hangs" {
					c.InitTimeout = 200 * time.Millisecond
				}
				if tt.program != "" {
					c.Functions[0].Path = tt.program
				}
			})
			for range 2 {
				got := r.call("mode", "echo")
				if got.failed == nil || got.failed.Type != tt.kind || !strings.Contains(got.failed.Message, tt.message) {
					t.Fatalf("failure: %+v (%v)", got, got.failed)
				}
			}
			if n := len(r.instances()); n != 0 {
				t.Errorf("%d instances left", n)
			}
			if n := r.pool.cfg.Recorder.Running(); n != 0 {
				t.Errorf("%d processes recorded", n)
			}
		})
	}
}

func TestTimeoutFailsAllInvocationsOfItsProcess(t *testing.T) {
	r := newRig(t, func(c *PoolConfig) { c.Functions[0].Concurrency, c.Functions[0].Timeout = 2, 500*time.Millisecond })
	r.call("mode", "echo")
	r.settled(2)
	a, b := r.begin("mode", "slow"), r.begin("mode", "slow")
	var kinds []string
	for _, c := range []<-chan reply{a, b} {
		got := wait(t, c)
		if got.failed == nil {
			t.Fatalf("no failure: %+v", got)
		}
		kinds = append(kinds, got.failed.Type)
		if got.failed.Type == ErrorExit && !strings.Contains(got.failed.Message, "because of another invocation: timed out after 500ms") {
			t.Errorf("failure: %v", got.failed)
		}
	}
	slices.Sort(kinds)
	if diff := cmp.Diff([]string{ErrorExit, ErrorTimeout}, kinds); diff != "" {
		t.Error(diff)
	}
}

func TestCallerThatLeavesDoesNotStopTheFunction(t *testing.T) {
	r, g := newRig(t, nil), newGate(t)
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	// The answer is longer than any buffer on its way.
	p := payload(t, strings.Repeat("x", 1<<20), query("mode", "hold", "gate", g.path))
	go func() {
		_, err := r.pool.Invoke(ctx, "echo", p)
		done <- err
	}()
	held := g.arrival()
	pid := r.instances()[0].PID
	leave()
	if err := wait(t, done); !errors.Is(err, context.Canceled) {
		t.Fatalf("Invoke: %v, want context.Canceled", err)
	}
	held.pass()
	r.settled(1)
	if got := r.call("mode", "echo").pid(t); got != pid {
		t.Fatalf("process %d answered, want %d: it has ended its work and is free", got, pid)
	}
}

func TestCallerThatLeavesTheQueueIsForgotten(t *testing.T) {
	r := newRig(t, func(c *PoolConfig) { c.Functions[0].Env = []string{"ECHO_INIT=hang"} })
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	p := payload(t, "", nil)
	go func() {
		_, err := r.pool.Invoke(ctx, "echo", p)
		done <- err
	}()
	r.await(FunctionWake)
	if n := r.pool.Status()[0].Waiting; n != 1 {
		t.Fatalf("%d wait, want 1", n)
	}
	leave()
	if err := wait(t, done); !errors.Is(err, context.Canceled) {
		t.Fatalf("Invoke: %v, want context.Canceled", err)
	}
	if n := r.pool.Status()[0].Waiting; n != 0 {
		t.Fatalf("%d wait, want 0", n)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	r, g := newRig(t, nil), newGate(t)
	child, err := strconv.Atoi(r.call("mode", "child").body)
	if err != nil {
		t.Fatal(err)
	}
	done := r.begin("mode", "hold", "gate", g.path)
	g.arrival()
	stream, err := r.pool.Invoke(t.Context(), "echo", payload(t, "", query("mode", "stream", "n", "2", "gate", g.path)))
	if err != nil {
		t.Fatal(err)
	}
	pids := pidsOf(r.instances())
	if len(pids) != 2 || !alive(child) {
		t.Fatalf("instances %v, child alive %t", pids, alive(child))
	}

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := r.pool.Close(ctx); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d is alive", pid)
		}
	}
	// The function's own child is reaped by init, whenever that is.
	eventually(t, "the child to end", func() bool { return !alive(child) })
	if got := wait(t, done); got.failed == nil || !strings.Contains(got.failed.Message, "signal: terminated") {
		t.Errorf("invocation under way: %+v (%v)", got, got.failed)
	}
	var failure *FunctionError
	if got := finish(stream); !errors.As(got.readErr, &failure) {
		t.Errorf("stream under way: %+v", got)
	}
	if got := r.call("mode", "echo"); !errors.Is(got.err, ErrClosed) {
		t.Errorf("invocation after Close: %+v", got)
	}
	if _, err := os.Stat(r.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// holdSpawner keeps the pool from starting processes until the func it returns is
// called.
func (r *rig) holdSpawner() (release func()) {
	open := make(chan struct{})
	r.pool.spawns <- func() { <-open }
	return func() { close(open) }
}

func TestCloseStopsAProcessThatIsJustBeingStarted(t *testing.T) {
	for name, ignore := range map[string]string{"asked": "", "killed": "ECHO_TERM=ignore"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(c *PoolConfig) { c.Functions[0].Env = []string{"ECHO_INIT=hang", ignore} })
			release := r.holdSpawner()
			invoked := r.begin("mode", "echo")
			eventually(t, "an instance", func() bool { return len(r.instances()) == 1 })
			if s := r.pool.Status()[0]; s.Waiting != 1 || s.Instances[0].State != StateStarting || s.Instances[0].PID != 0 {
				t.Errorf("status: %+v", s)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if name == "killed" {
				cancel()
			}
			closed := make(chan error, 1)
			go func() { closed <- r.pool.Close(ctx) }()
			if got := wait(t, invoked); !errors.Is(got.err, ErrClosed) {
				t.Errorf("Invoke: %+v, want ErrClosed", got)
			}
			eventually(t, "the request to stop", func() bool { return r.instances()[0].State == StateStopping })
			release()
			if err := wait(t, closed); name == "asked" && err != nil {
				t.Errorf("Close: %v", err)
			}
			if n := len(r.instances()); n != 0 {
				t.Errorf("%d instances left", n)
			}
		})
	}
}

func TestCloseKillsWhenItMayWaitNoLonger(t *testing.T) {
	r := newRig(t, func(c *PoolConfig) {
		c.StopGrace = time.Hour
		c.Functions[0].Env = []string{"ECHO_TERM=ignore"}
	})
	pid := r.call("mode", "echo").pid(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.pool.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Close: %v, want context.Canceled", err)
	}
	if alive(pid) {
		t.Error("the process is alive")
	}
}

func TestChildrenEndWithTheirFunction(t *testing.T) {
	r := newRig(t, nil)
	child, err := strconv.Atoi(r.call("mode", "child").body)
	if err != nil {
		t.Fatal(err)
	}
	r.call("mode", "crash")
	r.await(FunctionCrash)
	eventually(t, "the child to end", func() bool { return !alive(child) })
}

func TestEnvironmentIsCompleteAndClean(t *testing.T) {
	t.Setenv("DORMOUSE_LEAK", "must not get out")
	r := newRig(t, func(c *PoolConfig) {
		c.Env = []string{"HOME=/home/pool", "TABLE=pool"}
		c.Functions[0].Env = []string{"TABLE=function"}
		c.Functions[0].Concurrency = 3
	})
	var list []string
	if err := json.Unmarshal([]byte(r.call("mode", "env").body), &list); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for _, kv := range list {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	if !strings.HasPrefix(env["AWS_LAMBDA_RUNTIME_API"], "local/echo-") || !strings.HasPrefix(env["AWS_LAMBDA_LOG_STREAM_NAME"], "echo-") {
		t.Errorf("addresses: %v", env)
	}
	delete(env, "AWS_LAMBDA_RUNTIME_API")
	delete(env, "AWS_LAMBDA_LOG_STREAM_NAME")
	delete(env, "_X_AMZN_TRACE_ID") // set by the runtime client
	want := map[string]string{
		"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/pool", "TMPDIR": "/tmp", "TZ": ":UTC", "TABLE": "function",
		"LAMBDA_TASK_ROOT": build.dir, "_HANDLER": "echofn", "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1",
		"AWS_LAMBDA_FUNCTION_NAME": "echo", "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "256",
		"AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand", "AWS_LAMBDA_LOG_GROUP_NAME": "/aws/lambda/echo",
		"AWS_LAMBDA_MAX_CONCURRENCY": "3", "GOMAXPROCS": "1", SocketEnv: r.socket,
	}
	if diff := cmp.Diff(want, env); diff != "" {
		t.Error(diff)
	}
}

func TestOutputComesInLinesWithTheFunctionsName(t *testing.T) {
	r := newRig(t, nil)
	r.call("mode", "print")
	r.call("mode", "crash")
	r.await(FunctionCrash)
	r.mu.Lock()
	defer r.mu.Unlock()
	want := []string{"echo: to stdout", "echo: to stderr", "echo: " + strings.Repeat("x", maxOutputLine)}
	if diff := cmp.Diff(want, r.lines); diff != "" {
		t.Errorf("lines (-want +got):\n%.500s", diff)
	}
}

func TestProcessDiesWithTheThreadThatStartsIt(t *testing.T) {
	if runtime.GOOS != "linux" {
		return // other systems have no such signal; see functionAttr
	}
	if a := functionAttr(); !a.Setpgid || !strings.Contains(fmt.Sprintf("%+v", a), "Pdeathsig:killed") {
		t.Fatalf("attributes: %+v", a)
	}
	// The spawning thread is not that of any test: processes outlive a goroutine
	// that locks its thread and ends.
	r := newRig(t, nil)
	ended := make(chan int)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		inv, err := r.pool.Invoke(context.WithoutCancel(t.Context()), "echo", []byte(`{"body":"x"}`))
		if err != nil {
			ended <- 0
			return
		}
		pid, _ := strconv.Atoi(finish(inv).headers["X-Pid"])
		ended <- pid
	}()
	pid := wait(t, ended)
	r.settled(1)
	if got := r.call("mode", "echo").pid(t); got != pid {
		t.Fatalf("process %d answered, want %d", got, pid)
	}
}

func TestUnknownFunction(t *testing.T) {
	r := newRig(t, nil)
	if _, err := r.pool.Invoke(t.Context(), "nobody", nil); !errors.Is(err, ErrUnknownFunction) {
		t.Fatalf("Invoke: %v, want ErrUnknownFunction", err)
	}
}

func TestNewPoolRefusesWhatCannotWork(t *testing.T) {
	tests := map[string][]FunctionConfig{
		"no name":       {{Path: "/bin/true"}},
		"odd name":      {{Name: "a/b", Path: "/bin/true"}},
		"relative path": {{Name: "a", Path: "bin/true"}},
		"same twice":    {{Name: "a", Path: "/bin/true"}, {Name: "a", Path: "/bin/true"}},
	}
	for name, functions := range tests {
		t.Run(name, func(t *testing.T) {
			p, err := NewPool(PoolConfig{Socket: filepath.Join(t.TempDir(), "s"), Functions: functions})
			if err == nil {
				_ = p.Close(t.Context())
				t.Fatal("no error")
			}
		})
	}
}

func TestSocketLeftOverIsReplacedAndALivingOneIsNot(t *testing.T) {
	r := newRig(t, nil)
	if p, err := NewPool(PoolConfig{Socket: r.socket}); err == nil {
		_ = p.Close(t.Context())
		t.Fatal("two pools on one socket")
	}
	left := filepath.Join(t.TempDir(), "s")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: left}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Close(fd); err != nil {
		t.Fatal(err)
	}
	p, err := NewPool(PoolConfig{Socket: left})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

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

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
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

func TestProcessUsedLastIsUsedFirst(t *testing.T) {
	r, g := newRig(t, nil), localtest.NewGate(t)
	a := r.begin("mode", "hold", "gate", g.Path)
	heldA := g.Arrival()
	b := r.begin("mode", "hold", "gate", g.Path)
	heldB := g.Arrival()
	heldB.Pass()
	pidB := localtest.Wait(t, b).pid(t)
	r.settled(1)
	heldA.Pass()
	pidA := localtest.Wait(t, a).pid(t)
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
	if count := r.await(journal.ProcessCount); count.Running != 0 {
		t.Errorf("count: %+v", count)
	}
	if localtest.Alive(pid) || len(r.instances()) != 0 {
		t.Errorf("process %d: localtest.Alive %t, instances %+v", pid, localtest.Alive(pid), r.instances())
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
	g := localtest.NewGate(t)
	busy := r.begin("mode", "hold", "gate", g.Path)
	held := g.Arrival()
	for range 3 { // three times as long as the pool keeps an idle process
		inv, err := r.pool.Invoke(t.Context(), "other", localtest.Payload(t, "", localtest.Query("mode", "echo")))
		if err != nil {
			t.Fatal(err)
		}
		finish(inv)
		if e := r.await(FunctionSleep); e.Name != "other" {
			t.Fatalf("asleep while busy: %+v", e)
		}
	}
	released := time.Now()
	held.Pass()
	if got := localtest.Wait(t, busy); got.body != "hello" {
		t.Fatalf("answer: %+v", got)
	}
	if e := r.await(FunctionSleep); e.Name != "echo" || e.Time.Sub(released) < 20*time.Millisecond {
		t.Fatalf("asleep %s after its work: %+v", e.Time.Sub(released), e)
	}
}

func TestSixteenAtOnceGetSixteenProcesses(t *testing.T) {
	r, g := newRig(t, nil), localtest.NewGate(t)
	var replies []<-chan reply
	for range 16 {
		replies = append(replies, r.begin("mode", "hold", "gate", g.Path))
	}
	var all []*localtest.Held
	for range 16 {
		all = append(all, g.Arrival())
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
		h.Pass()
	}
	pids := map[int]bool{}
	for _, c := range replies {
		pids[localtest.Wait(t, c).pid(t)] = true
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
			if got := localtest.Wait(t, c); got.body != "hello" {
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

// If a request for work is handled after its process was buried, it must get no
// invocation.
func TestRequestOfAProcessThatIsGoneGetsNoWork(t *testing.T) {
	r := newRig(t, nil)
	inv, err := r.pool.Invoke(t.Context(), "echo", localtest.Payload(t, "hello", localtest.Query("mode", "echo")))
	if err != nil {
		t.Fatal(err)
	}
	finish(inv)
	f := r.pool.functions["echo"]
	f.mu.Lock()
	var gone *instance
	for i := range f.instances {
		gone = i
	}
	f.mu.Unlock()
	if err := syscall.Kill(gone.pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-gone.dead
	f.mu.Lock()
	f.waiting = append(f.waiting, newInvocation(f, "", nil))
	f.mu.Unlock()
	if got, _ := f.next(gone, make(chan struct{})); got != nil {
		t.Errorf("it got %v", got.id)
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

func TestCallerThatLeavesTheQueueIsForgotten(t *testing.T) {
	r := newRig(t, func(c *PoolConfig) { c.Functions[0].Env = []string{"ECHO_INIT=hang"} })
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	p := localtest.Payload(t, "", nil)
	go func() {
		_, err := r.pool.Invoke(ctx, "echo", p)
		done <- err
	}()
	r.await(FunctionWake)
	if n := r.pool.Status()[0].Waiting; n != 1 {
		t.Fatalf("%d wait, want 1", n)
	}
	leave()
	if err := localtest.Wait(t, done); !errors.Is(err, context.Canceled) {
		t.Fatalf("Invoke: %v, want context.Canceled", err)
	}
	if n := r.pool.Status()[0].Waiting; n != 0 {
		t.Fatalf("%d wait, want 0", n)
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

// holdSpawner keeps the pool from starting processes until release is called.
func (r *rig) holdSpawner() (release func()) {
	open := make(chan struct{})
	r.pool.spawns <- func() { <-open }
	return func() { close(open) }
}

func TestCloseStopsAProcessThatIsJustBeingStarted(t *testing.T) {
	for name, ignore := range map[string]string{"asked": "", "killed": "ECHO_TERM=ignore"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(c *PoolConfig) { c.StopGrace, c.Functions[0].Env = time.Hour, []string{"ECHO_INIT=hang", ignore} })
			release := r.holdSpawner()
			invoked := r.begin("mode", "echo")
			localtest.Eventually(t, "an instance", func() bool { return len(r.instances()) == 1 })
			if s := r.pool.Status()[0]; s.Waiting != 1 || s.Instances[0].State != StateStarting || s.Instances[0].PID != 0 {
				t.Errorf("status: %+v", s)
			}
			ctx, cancel := context.WithTimeout(t.Context(), localtest.Patience)
			defer cancel()
			if name == "killed" {
				cancel()
			}
			closed := make(chan error, 1)
			go func() { closed <- r.pool.Close(ctx) }()
			if got := localtest.Wait(t, invoked); !errors.Is(got.err, ErrClosed) {
				t.Errorf("Invoke: %+v, want ErrClosed", got)
			}
			localtest.Eventually(t, "the request to stop", func() bool { return r.instances()[0].State == StateStopping })
			release()
			if err := localtest.Wait(t, closed); name == "asked" && err != nil {
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
	if localtest.Alive(pid) {
		t.Error("the process is alive")
	}
}

func TestNewPoolRefusesARelativePath(t *testing.T) {
	p, err := NewPool(PoolConfig{Functions: []FunctionConfig{{Name: "a", Path: "bin/true"}}})
	if err == nil {
		_ = p.Close(t.Context())
		t.Fatal("no error")
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

func TestRenewReplacesAProcessThatIsJustBeingStarted(t *testing.T) {
	r := newRig(t, func(c *PoolConfig) { c.Env = []string{"ECHO_INIT=hang"} })
	a := r.begin("mode", "echo")
	r.await(FunctionWake)
	r.pool.Renew(nil)
	if got := localtest.Wait(t, a); got.body != "hello" {
		t.Errorf("%+v", got)
	}
}

package lambda

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
)

func TestProcessThatIgnoresSIGTERMIsKilledAfterTheGrace(t *testing.T) {
	r := newRig(t, func(c *PoolConfig) {
		c.SleepAfter, c.StopGrace = 20*time.Millisecond, 30*time.Millisecond
		c.Functions[0].Env = []string{"ECHO_TERM=ignore"}
	})
	pid := r.call("mode", "echo").pid(t)
	if e := r.await(FunctionSleep); e.PID != pid || e.Duration < 50*time.Millisecond || localtest.Alive(pid) {
		t.Fatalf("%+v, localtest.Alive %t", e, localtest.Alive(pid))
	}
}

func TestFunctionThatAsksForSIGTERMGetsIt(t *testing.T) {
	r := newRig(t, func(c *PoolConfig) {
		c.SleepAfter, c.StopGrace = 20*time.Millisecond, localtest.Patience
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
		r, g := newRig(t, nil), localtest.NewGate(t)
		done := r.begin("mode", "hold", "gate", g.Path)
		g.Arrival()
		pid := r.instances()[0].PID
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		got := localtest.Wait(t, done)
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
			// This call comes while the pool still takes the process for idle.
			got := r.call("mode", "echo")
			if got.failed != nil && strings.Contains(got.failed.Message, "signal: killed") {
				// The pool wrote the invocation to the socket before the kernel closed it.
				// Whether the process has read it is unknown.
				continue
			}
			if got.body != "hello" || got.pid(t) == pid {
				t.Fatalf("after the kill: %+v (%v)", got, got.failed)
			}
		}
	})
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
	// The call waits for the process that is coming. That process has died, so the call
	// gets another one.
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
				c.InitTimeout = time.Hour
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

func TestChildrenEndWithTheirFunction(t *testing.T) {
	r := newRig(t, nil)
	child, err := strconv.Atoi(r.call("mode", "child").body)
	if err != nil {
		t.Fatal(err)
	}
	r.call("mode", "crash")
	r.await(FunctionCrash)
	localtest.Eventually(t, "the child to end", func() bool { return !localtest.Alive(child) })
}

func TestEnvironmentIsCompleteAndClean(t *testing.T) {
	t.Setenv("DORMOUSE_LEAK", "must not get out")
	r := newRig(t, func(c *PoolConfig) {
		c.Env = []string{"HOME=/home/pool", "TABLE=pool"}
		c.Functions[0].Env = []string{"TABLE=function"}
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
	if !strings.HasPrefix(env["AWS_LAMBDA_RUNTIME_API"], r.pool.listener.Addr().String()+"/echo-") || !strings.HasPrefix(env["AWS_LAMBDA_LOG_STREAM_NAME"], "echo-") {
		t.Errorf("addresses: %v", env)
	}
	delete(env, "AWS_LAMBDA_RUNTIME_API")
	delete(env, "AWS_LAMBDA_LOG_STREAM_NAME")
	delete(env, "_X_AMZN_TRACE_ID") // set by the runtime client
	want := map[string]string{
		"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/pool", "TMPDIR": "/tmp", "TZ": ":UTC", "TABLE": "function",
		"LAMBDA_TASK_ROOT": filepath.Dir(r.pool.functions["echo"].Path), "_HANDLER": "echo", "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1",
		"AWS_LAMBDA_FUNCTION_NAME": "echo", "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "256",
		"AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand", "AWS_LAMBDA_LOG_GROUP_NAME": "/aws/lambda/echo",
		"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local",
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
	want = append(want, slices.Repeat([]string{"echo: last words"}, 1000)...)
	if diff := cmp.Diff(want, r.lines); diff != "" {
		t.Errorf("lines (-want +got):\n%.500s", diff)
	}
}

func TestLastWordsComeBeforeTheNewsOfTheEnd(t *testing.T) {
	ended, listened := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r := newRig(t, func(c *PoolConfig) {
		inner := c.Output
		c.Output = func(function, line string) {
			once.Do(func() { // this listener takes longer than the end of the process
				close(listened)
				<-ended
			})
			inner(function, line)
		}
	})
	pid := r.call("mode", "echo").pid(t)
	done := r.begin("mode", "crash")
	localtest.Wait(t, listened)
	localtest.Eventually(t, "the process to end", func() bool { return !localtest.Alive(pid) })
	select {
	case got := <-done:
		t.Errorf("told of the end before the last words: %+v", got)
	default:
	}
	close(ended)
	localtest.Wait(t, done)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.lines) != 1000 {
		t.Errorf("%d lines, want 1000", len(r.lines))
	}
}

func TestDaemonDoesNotHoldUpTheNewsOfTheEnd(t *testing.T) {
	r := newRig(t, nil)
	daemon, err := strconv.Atoi(r.call("mode", "daemon").body)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(daemon, syscall.SIGKILL) })
	if got := r.call("mode", "crash"); got.failed == nil {
		t.Fatalf("no failure: %+v", got)
	}
	r.await(FunctionCrash)
	if !localtest.Alive(daemon) {
		t.Error("the daemon did not hold the output open: the test shows nothing")
	}
}

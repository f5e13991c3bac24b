package lambda

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

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

package lambda

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/aws"
	"github.com/dormouse-mcp/dormouse/infra/local/journal"
)

// States of an instance.
const (
	starting  = "starting" // not ready yet
	idle      = "idle"
	busy      = "busy"
	returning = "returning" // the process has ended its answer, and has not asked for the next invocation
	stopping  = "stopping"  // asked to stop, or being killed
)

// Kinds of journal.Event that a pool records.
const (
	functionWake  = "function.wake"  // a process was started
	functionSleep = "function.sleep" // a process was stopped: it was idle or replaced, or the pool was closed
	functionCrash = "function.crash" // a process ended in another way
)

// instance is one process of a function, from the decision to start it until it has ended.
type instance struct {
	id      string // names the process in the path of the Runtime API
	fn      *function
	tenant  string // the tenant whose invocations the process gets; "" if the function has no tenants
	born    time.Time
	work    chan *invocation // holds an assigned invocation until the process takes it
	dead    chan struct{}    // closed when the process has ended
	failure error            // how the process ended; set before dead is closed

	// Guarded by fn.mu.
	cmd     *exec.Cmd // nil until it has started
	state   string
	since   time.Time
	old     bool        // the pool's environment has changed since the process was started
	asked   string      // why it was asked to end; "": it was not
	killed  string      // why it was killed
	inv     *invocation // the invocation of the process, from assign until the process asks for the next one
	sleeper *time.Timer // calls doze; nil until the process has asked for its first invocation
}

// start begins a new instance. Its caller must hold f.mu.
func (f *function) start(tenant string) {
	now := time.Now()
	i := &instance{
		id: f.Name + "-" + uuid.NewString(), fn: f, tenant: tenant, born: now, since: now, state: starting,
		dead: make(chan struct{}), work: make(chan *invocation, 1),
	}
	f.instances[i] = true
	f.pool.instances.Store(i.id, i)
	f.pool.running.Go(i.run)
}

// stop asks the process to end, and kills it after StopGrace. Its caller must hold f.mu.
func (f *function) stop(i *instance, why string) {
	if i.state == stopping || !f.instances[i] {
		return
	}
	i.state, i.asked = stopping, why
	if i.cmd != nil {
		_ = i.cmd.Process.Signal(syscall.SIGTERM) // it fails only if the process has ended
		time.AfterFunc(f.pool.cfg.StopGrace, func() { _ = i.cmd.Process.Kill() })
	}
}

// kill ends the process at once. Its caller must hold f.mu.
func (f *function) kill(i *instance, why string) {
	if i.killed != "" || !f.instances[i] {
		return
	}
	i.state, i.killed = stopping, why
	if i.cmd != nil {
		_ = i.cmd.Process.Kill() // it fails only if the process has ended
	}
}

// run starts the process and waits for its end.
func (i *instance) run() {
	// Linux kills the process when the thread that has started it ends; see functionAttr. So the
	// thread belongs to this goroutine until the process has ended.
	runtime.LockOSThread()
	f := i.fn
	cmd, output := i.command()
	f.mu.Lock()
	err := cmd.Start()
	if err == nil {
		i.cmd = cmd
		f.pool.cfg.Recorder.Record(journal.Event{Kind: functionWake, Name: f.Name, PID: cmd.Process.Pid})
		if i.state == stopping {
			_ = cmd.Process.Kill()
		}
	}
	f.mu.Unlock()
	end := journal.Event{Kind: functionCrash, Name: f.Name}
	if err == nil {
		_ = cmd.Wait() // ProcessState says how it ended
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		output.flush()
		end.PID, end.Detail = cmd.Process.Pid, cmd.ProcessState.String()
	} else {
		end.Detail = "it could not be started: " + err.Error()
	}
	if f.Temp != "" {
		f.Clean(i.temp())
	}
	f.mu.Lock()
	if i.killed == "" && i.asked != "" {
		end.Kind = functionSleep
	}
	i.failure = fmt.Errorf("function %s: %s", f.Name, cmp.Or(i.killed, end.Detail))
	f.mu.Unlock()
	end.Detail, end.Duration = cmp.Or(i.killed, i.asked, end.Detail), time.Since(i.born)
	f.pool.cfg.Recorder.Record(end)
	f.buried(i)
}

// command returns the command of the process, and the writer that gets its output.
func (i *instance) command() (*exec.Cmd, *lines) {
	f := i.fn
	if f.Temp != "" {
		_ = os.Mkdir(i.temp(), 0o700) // if this fails, the process finds no TMPDIR
	}
	cmd := exec.Command(f.Path, f.Args...) //nolint:noctx // a process outlives the invocation it was started for
	if len(f.Args) == 0 {
		cmd.Args[0] = f.Name // tests find the processes of a function by this name, also if one program is several functions
	}
	cmd.Dir, cmd.Env, cmd.SysProcAttr = filepath.Dir(f.Path), i.environment(), functionAttr()
	output := &lines{to: func(line string) { f.pool.cfg.Output(f.Name, line) }}
	cmd.Stdout, cmd.Stderr = output, output
	cmd.WaitDelay = time.Second // how long Wait waits for descendants of the process to close the pipe
	return cmd, output
}

func (i *instance) temp() string { return filepath.Join(i.fn.Temp, i.id) }

// environment returns the configured variables, and those of Lambda that functions in Go read. A
// configured variable overrides one of Lambda, except AWS_LAMBDA_RUNTIME_API and, with Temp,
// TMPDIR.
func (i *instance) environment() []string {
	f := i.fn
	env := []string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp", "TMPDIR=/tmp", "TZ=:UTC",
		"LAMBDA_TASK_ROOT=" + filepath.Dir(f.Path), "_HANDLER=" + f.Name,
		"AWS_REGION=" + aws.Region, "AWS_DEFAULT_REGION=" + aws.Region,
		"AWS_LAMBDA_FUNCTION_NAME=" + f.Name, "AWS_LAMBDA_FUNCTION_VERSION=$LATEST",
		"AWS_LAMBDA_FUNCTION_MEMORY_SIZE=256", "AWS_LAMBDA_INITIALIZATION_TYPE=on-demand",
		"AWS_LAMBDA_LOG_GROUP_NAME=/aws/lambda/" + f.Name, "AWS_LAMBDA_LOG_STREAM_NAME=" + i.id,
		// Functions sign requests to the stand-ins for AWS with these, but nobody verifies the
		// signatures: the URL of the stand-ins is a secret.
		"AWS_ACCESS_KEY_ID=local", "AWS_SECRET_ACCESS_KEY=local",
	}
	env = append(append(env, *f.pool.env.Load()...), f.Env...)
	if f.Temp != "" {
		env = append(env, "TMPDIR="+i.temp())
	}
	return append(env, "AWS_LAMBDA_RUNTIME_API="+f.pool.listener.Addr().String()+"/"+i.id)
}

// lines passes on the output of a process line by line.
type lines struct {
	to   func(line string)
	rest []byte
}

func (l *lines) Write(data []byte) (int, error) {
	l.rest = append(l.rest, data...)
	for {
		line, rest, ended := bytes.Cut(l.rest, []byte("\n"))
		if !ended {
			return len(data), nil
		}
		l.to(string(line))
		l.rest = rest
	}
}

// flush passes on a last line without a newline.
func (l *lines) flush() {
	if len(l.rest) > 0 {
		l.to(string(l.rest))
	}
}

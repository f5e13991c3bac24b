package lambda

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/aws"
	"github.com/dormouse-mcp/dormouse/infra/local/journal"
)

const (
	maxOutputLine = 64 << 10
	// outputRest is how long the pool still reads the output of a dead process when a
	// descendant outside its process group keeps the pipe open.
	outputRest = time.Second
)

// instance is one process of a function, from the decision to start it until every
// part of it has ended:
//
//	start ─▶ run: spawn ─▶ (ready, busy, idle …) ─▶ end ─▶ function.buried
type instance struct {
	id     string // identifies the instance in the path of the Runtime API
	fn     *function
	tenant string // whose invocations it gets, "" if the function has no tenants
	born   time.Time
	// spawned is closed when the process has started or has failed to start.
	spawned chan struct{}
	// dead is closed when every part of the process has ended; end is set by then.
	dead chan struct{}
	end  string // "exit status 1", "signal: killed"

	// work holds the assigned invocation until the process takes it. It has room for
	// one.
	work chan *invocation

	// Guarded by fn.mu.
	proc      *process // nil until spawned
	state     string   // one of the states
	since     time.Time
	old       bool   // it has another environment than the pool has now
	asked     bool   // the pool sent SIGTERM
	doomed    bool   // the pool killed it
	why       string // the reason why the pool sent SIGTERM or killed it
	report    *FunctionError
	inv       *invocation // from assign until the process asks for the next one
	initTimer *time.Timer
	sleeper   *time.Timer // nil until the process has asked for an invocation
}

// stateReturning is the state of a process that has answered and has not asked for
// more yet.
const stateReturning = "returning"

// start begins a new instance. Called with mu held.
func (f *function) start(tenant string) {
	now := time.Now()
	i := &instance{
		id: f.Name + "-" + uuid.NewString(), fn: f, tenant: tenant, born: now, since: now, state: StateStarting,
		spawned: make(chan struct{}), dead: make(chan struct{}), work: make(chan *invocation, 1),
	}
	i.initTimer = time.AfterFunc(initTimeout, func() { f.initExpired(i) })
	f.instances[i] = true
	f.pool.instances.Store(i.id, i)
	f.pool.running.Add(1)
	go i.run()
}

func (i *instance) pid() int {
	if i.proc == nil {
		return 0
	}
	return i.proc.cmd.Process.Pid
}

// stop asks the process to end. Called with mu held.
func (f *function) stop(i *instance, why string) {
	if i.state == StateStopping || !f.instances[i] {
		return
	}
	i.state, i.asked, i.why, i.since = StateStopping, true, why, time.Now()
	if i.proc != nil {
		i.proc.stop(f.pool.cfg.StopGrace)
	}
}

// kill ends the process at once. Called with mu held.
func (f *function) kill(i *instance, why string) {
	if i.doomed || !f.instances[i] {
		return
	}
	i.state, i.doomed, i.since = StateStopping, true, time.Now()
	if i.why == "" {
		i.why = why
	}
	if i.proc != nil {
		i.proc.kill()
	}
}

func (f *function) initExpired(i *instance) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i.state != StateStarting {
		return
	}
	i.report = &FunctionError{Type: ErrorTimeout, Message: fmt.Sprintf("the process did not ask for an invocation within %s", initTimeout)}
	f.kill(i, fmt.Sprintf("not ready after %s", initTimeout))
}

// failure returns the error with which inv ends because i has ended. Call it only after
// that end.
func (i *instance) failure(inv *invocation) *FunctionError {
	i.fn.mu.Lock()
	defer i.fn.mu.Unlock()
	switch {
	case inv.verdict != nil:
		return inv.verdict
	case i.report != nil:
		e := *i.report
		e.Function, e.RequestID = i.fn.Name, inv.id
		return &e
	default:
		return inv.error(ErrorExit, "Runtime exited with error: %s", i.end)
	}
}

// run starts the process and waits for its end.
func (i *instance) run() {
	f := i.fn
	defer f.pool.running.Done()
	proc, output, err := i.spawn()
	f.mu.Lock()
	if err != nil {
		i.report = &FunctionError{Type: ErrorStart, Message: fmt.Sprintf("the program could not be started: %v", err)}
		f.pool.cfg.Recorder.Record(journal.Event{Kind: FunctionCrash, Name: f.Name, Detail: i.report.Message})
	} else {
		i.proc = proc
		f.pool.cfg.Recorder.Record(journal.Event{Kind: FunctionWake, Name: f.Name, PID: i.pid()})
		if i.doomed {
			proc.kill()
		} else if i.asked {
			proc.stop(f.pool.cfg.StopGrace)
		}
	}
	f.mu.Unlock()
	close(i.spawned)
	if err == nil {
		i.end = proc.wait()
		output.finish()
	}
	if f.Temp != "" {
		f.Clean(i.temp())
	}
	f.buried(i)
}

// endEvent returns the event for the end of i, without a pid if no process started.
// Called with mu held.
func (i *instance) endEvent() journal.Event {
	e := journal.Event{Kind: FunctionCrash, Name: i.fn.Name, PID: i.pid(), Detail: i.end, Duration: time.Since(i.born)}
	switch {
	case i.doomed:
		e.Detail = i.why + " (" + i.end + ")"
	case i.asked:
		e.Kind, e.Detail = FunctionSleep, i.why
	}
	return e
}

// Kinds of journal.Event that a pool records.
const (
	FunctionWake  = "function.wake"  // a process was started
	FunctionSleep = "function.sleep" // it was stopped because it was idle, or at the end; Duration: its life
	FunctionCrash = "function.crash" // it ended in another way; Detail: how; Duration: its life
)

// spawn starts the program.
func (i *instance) spawn() (*process, *output, error) {
	f := i.fn
	if f.Temp != "" {
		if err := os.Mkdir(i.temp(), 0o700); err != nil {
			return nil, nil, err
		}
	}
	cmd := exec.Command(f.Path, f.Args...) //nolint:noctx // a process outlives the invocation it was started for
	if len(f.Args) == 0 {
		cmd.Args[0] = f.Name // one program may be several functions, and tests look for their processes
	}
	cmd.Dir = filepath.Dir(f.Path)
	cmd.Env = i.environment()
	cmd.SysProcAttr = functionAttr()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("make a pipe for the output: %w", err)
	}
	defer func() { _ = w.Close() }()
	cmd.Stdout, cmd.Stderr = w, w
	out := &output{from: r, done: make(chan struct{})}
	started := make(chan error, 1)
	f.pool.spawns <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		_ = r.Close()
		return nil, nil, err
	}
	go out.copyTo(func(line string) { f.pool.cfg.Output(f.Name, line) })
	return &process{cmd: cmd}, out, nil
}

func (i *instance) temp() string { return filepath.Join(i.fn.Temp, i.id) }

// environment returns the variables that Lambda sets and that a Go function reads. The
// configuration may override them, except AWS_LAMBDA_RUNTIME_API and, with Temp, TMPDIR.
func (i *instance) environment() []string {
	f := i.fn
	env := []string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp", "TMPDIR=/tmp", "TZ=:UTC",
		"LAMBDA_TASK_ROOT=" + filepath.Dir(f.Path), "_HANDLER=" + f.Name,
		"AWS_REGION=" + aws.Region, "AWS_DEFAULT_REGION=" + aws.Region,
		"AWS_LAMBDA_FUNCTION_NAME=" + f.Name, "AWS_LAMBDA_FUNCTION_VERSION=$LATEST",
		"AWS_LAMBDA_FUNCTION_MEMORY_SIZE=256", "AWS_LAMBDA_INITIALIZATION_TYPE=on-demand",
		"AWS_LAMBDA_LOG_GROUP_NAME=/aws/lambda/" + f.Name, "AWS_LAMBDA_LOG_STREAM_NAME=" + i.id,
		// The emulator calls no service of AWS. It recognizes its functions by a secret
		// path.
		"AWS_ACCESS_KEY_ID=local", "AWS_SECRET_ACCESS_KEY=local",
	}
	env = append(env, *f.pool.env.Load()...)
	env = append(env, f.Env...)
	if f.Temp != "" {
		env = append(env, "TMPDIR="+i.temp())
	}
	return append(env, "AWS_LAMBDA_RUNTIME_API="+f.pool.listener.Addr().String()+"/"+i.id)
}

// process is an operating system process, the leader of a group of its own.
type process struct {
	cmd *exec.Cmd

	mu     sync.Mutex
	gone   bool // it has ended, and another process may get its pid
	killer *time.Timer
}

// wait waits until the whole process group has ended, and returns how the process
// ended.
func (p *process) wait() string {
	awaitEnd(p.cmd)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = true
	if p.killer != nil {
		p.killer.Stop()
	}
	// Kill the group before the leader is reaped: until then no other group can have its
	// number.
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	var exit *exec.ExitError
	if err := p.cmd.Wait(); err != nil && !errors.As(err, &exit) && p.cmd.ProcessState == nil {
		return err.Error()
	}
	return p.cmd.ProcessState.String()
}

// stop asks the process to end and kills its group after grace.
func (p *process) stop(grace time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone || p.killer != nil {
		return
	}
	p.killer = time.AfterFunc(grace, p.kill)
	// SIGTERM fails only if the process has ended, and wait will find that out.
	_ = syscall.Kill(p.cmd.Process.Pid, syscall.SIGTERM)
}

func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gone {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	}
}

// output reads the stdout and stderr of a process.
type output struct {
	from *os.File
	done chan struct{}
}

func (o *output) copyTo(sink func(line string)) {
	defer close(o.done)
	r := bufio.NewReaderSize(o.from, maxOutputLine)
	for {
		line, err := r.ReadSlice('\n')
		if len(line) > 0 {
			sink(outputLine(line))
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = r.ReadSlice('\n')
		}
		if err != nil {
			return
		}
	}
}

func outputLine(line []byte) string {
	line = bytes.TrimRight(line[:min(len(line), maxOutputLine)], "\r\n")
	return strings.ToValidUTF8(string(line), "\uFFFD")
}

// finish waits until all lines that the process wrote before its end have been passed on.
func (o *output) finish() {
	patience := time.NewTimer(outputRest)
	defer patience.Stop()
	select {
	case <-o.done:
	case <-patience.C:
		_ = o.from.SetReadDeadline(time.Now())
		<-o.done
	}
	_ = o.from.Close()
}

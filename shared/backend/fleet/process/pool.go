// Package process is the fleet of one machine: a task is a runner program started as a local
// process, or a runner inside of this program.
//
// The package does not limit the resources of a box.
//
// # What ends with a runner
//
// A runner is the leader of a session of its own. When a runner has ended in any way, the
// pool kills the processes that the runner left behind before it reports the task as stopped.
// On Linux it kills all processes of that session, in any process group, and their
// descendants. After [BecomeSubreaper] it also kills orphans with a session of their own
// (processes that a server started "detached"). On other systems it kills the runner's
// process group. On Linux the kernel also kills a runner when the program that holds the pool
// dies.
//
// A killed process does not end while its system call hangs, as on a network disk. After five
// seconds the pool logs which process is left, and reports the task as stopped all the same.
// Otherwise the task's calls would hang too.
//
// A daemon in its own session, whose parents have all ended, counts as left behind as soon as
// any task stops, because the pool cannot tell which task it came from. A runner that is a
// subreaper itself keeps these daemons for its own lifetime.
package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
)

// The ids of this fleet's tasks begin with one of these. A task of Place is a process of this machine.
// A task of Inside runs in this program; see [Config].Inside.
const (
	Place  = "process"
	Inside = fleet.Inside
)

// taskEnv is the environment variable that tells a runner its task id.
const taskEnv = "DORMOUSE_BOX_TASK"

const (
	defaultMaxTasks = 16
	defaultGrace    = 10 * time.Second
)

// Config says how a Pool runs its runners. Only the field Command is required.
type Config struct {
	// Command is the path of the runner program; it is not looked up in PATH. If Command is
	// the path of this program, runners start even after the file was removed or replaced.
	// Args are the arguments of the runner program.
	Command string
	Args    []string
	// Env is the whole environment of a runner (PATH, HOME, TMPDIR ...) besides taskEnv and
	// the task's own variables, which win.
	Env map[string]string
	// Dir is the runners' working directory; "" means this program's own.
	Dir string
	// MaxTasks is the number of tasks that may run at the same time; 0 means 16, and less than
	// 0 any number.
	MaxTasks int
	// Inside runs a task of the place Inside in this program, with the environment env. Inside
	// calls line for each line of the log, without the line end. When nothing of the task runs
	// any more, Inside returns the exit code that a runner would have. The end of ctx asks the
	// task to end, as SIGTERM asks a runner. If kill is closed, the task must end at once. If
	// Inside is nil, each task is a process.
	Inside func(ctx context.Context, kill <-chan struct{}, env map[string]string, line func(string)) (exit int)
	// Started reports whether pid is a process that this program has started for a task of the
	// place Inside. The process may have ended. If Started is nil, this program has started none.
	Started func(pid int) bool
	// Grace is the time between SIGTERM and SIGKILL; 0 means 10 s.
	Grace time.Duration
	// Prepare, if not nil, changes a task before it is started, or refuses it. Several
	// goroutines may call Prepare at once. Prepare must not change the map Env of its argument.
	Prepare func(context.Context, fleet.Task) (fleet.Task, error)
	// OnStart is called once for each task, when its runner has been started and before
	// OnStop. OnStart must not call the pool, which is locked.
	OnStart func(fleet.Status)
	// OnStop is called once for each task, after nothing of it runs any more (but see "What ends
	// with a runner") and before Close returns. OnStop may call every method of the pool but Close.
	OnStop func(fleet.Status)
	// Output gets the stdout and stderr of a runner, line by line without the line end,
	// cut at 64 KiB. The lines of one task come one after another.
	Output func(task fleet.Status, line string)
	// Logger may be nil for no log.
	Logger *slog.Logger
}

// Pool runs boxes as processes of this machine. It is safe for concurrent use. Close it after
// use.
type Pool struct {
	cfg     Config
	log     *slog.Logger
	program func() string // returns the path by which to start the runner program
	spawns  chan func()   // each starts one runner; see spawner
	running sync.WaitGroup
	since   time.Time

	mu      sync.Mutex
	closed  bool
	byID    map[string]*task
	byToken map[string]*task
	order   []*task
	zombies map[int]zombie // children that have ended and are not reaped yet, by pid
}

var _ fleet.Fleet = (*Pool)(nil)

type task struct {
	token  string
	status fleet.Status
	cmd    *exec.Cmd // nil for a task that runs in this program
	inside *inside   // nil for a task that is a process
	// exited is set before the runner's pid can be reused. If exited is true, the pool sends
	// no signal to the pid.
	exited bool
	killer *time.Timer
}

// NewPool returns an empty pool. It starts no process, but occupies one thread until Close.
func NewPool(cfg Config) *Pool {
	if cfg.MaxTasks == 0 {
		cfg.MaxTasks = defaultMaxTasks
	}
	if cfg.Grace <= 0 {
		cfg.Grace = defaultGrace
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Pool{
		cfg:     cfg,
		log:     cfg.Logger,
		program: programOf(cfg.Command),
		spawns:  make(chan func()),
		since:   time.Now(),
		byID:    map[string]*task{},
		byToken: map[string]*task{},
		zombies: map[int]zombie{},
	}
	go p.spawner()
	return p
}

// spawner starts all runners from one thread that lives as long as the pool. If the thread
// that started a runner ended, the kernel would act as if the runner's parent had died.
func (p *Pool) spawner() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for spawn := range p.spawns {
		spawn()
	}
}

// Run implements [fleet.Fleet]. It returns [fleet.ErrInvalid] for a task without a usable
// client token or environment, and [fleet.ErrCapacity] when MaxTasks tasks run. It
// returns [fleet.ErrUnavailable] if the pool is closed or the runner cannot be started.
func (p *Pool) Run(ctx context.Context, t fleet.Task) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if err := t.Check(); err != nil {
		return "", err
	}
	if p.cfg.Prepare != nil {
		var err error
		if t, err = p.cfg.Prepare(ctx, t); err != nil {
			return "", err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(time.Now())
	if known, ok := p.byToken[t.ClientToken]; ok {
		return known.status.ID, nil
	}
	if p.closed {
		return "", fmt.Errorf("%w: the pool is closed", fleet.ErrUnavailable)
	}
	if n := p.active(); p.cfg.MaxTasks > 0 && n >= p.cfg.MaxTasks {
		return "", fmt.Errorf("%w: %d of %d tasks run", fleet.ErrCapacity, n, p.cfg.MaxTasks)
	}
	if t.Place == Inside && p.cfg.Inside != nil {
		return p.startInside(t), nil
	}
	return p.start(t)
}

// start starts and registers the task. The caller holds mu, so that a second Run with
// the same token waits for the first.
func (p *Pool) start(ft fleet.Task) (string, error) {
	id := Place + "/" + uuid.NewString()
	out, in, err := os.Pipe()
	if err != nil {
		return "", fmt.Errorf("%w: make a pipe for the runner's output: %w", fleet.ErrUnavailable, err)
	}
	cmd := exec.Command(p.program(), p.cfg.Args...) //nolint:noctx // a task outlives the call that started it
	cmd.Args[0] = p.cfg.Command                     // what ps shows
	for name, value := range p.environment(ft, id) {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Dir = p.cfg.Dir
	cmd.Stdout, cmd.Stderr = in, in
	cmd.SysProcAttr = runnerAttr()
	err = p.spawn(cmd)
	_ = in.Close()
	if err != nil {
		_ = out.Close()
		return "", fmt.Errorf("%w: start the runner: %w", fleet.ErrUnavailable, err)
	}
	t := p.register(ft, id, cmd.Process.Pid)
	t.cmd = cmd
	go p.watch(t, t.status, out)
	return id, nil
}

func (p *Pool) register(ft fleet.Task, id string, pid int) *task {
	t := &task{token: ft.ClientToken, status: fleet.Status{
		ClientToken: ft.ClientToken,
		ID:          id, Box: ft.Box, Server: ft.Server,
		State: fleet.Running, PID: pid, Started: time.Now(),
	}}
	p.byID[id], p.byToken[t.token] = t, t
	p.order = append(p.order, t)
	p.running.Add(1)
	if p.cfg.OnStart != nil {
		p.cfg.OnStart(t.status)
	}
	return t
}

// CanStart returns an error if the runner's program is not on this machine, or must not be
// executed. A start may fail all the same.
func (p *Pool) CanStart() error {
	_, err := exec.LookPath(p.program())
	return err
}

func (p *Pool) spawn(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	p.spawns <- func() { started <- cmd.Start() }
	return <-started
}

// watch passes on the output of a task's runner, waits for the end of the task, and reports it.
func (p *Pool) watch(t *task, started fleet.Status, out *os.File) {
	defer p.running.Done()
	p.log.Info("box task started", "task", started.ID, "box", started.Box, "server", started.Server, "pid", started.PID)
	lines, drained := &output{pool: p, of: started}, make(chan struct{})
	go func() {
		defer close(drained)
		lines.copy(out)
	}()
	left := p.reap(t)
	// A surviving process that still holds the pipe must not delay the report.
	_ = out.SetReadDeadline(time.Now().Add(time.Second))
	<-drained
	_ = out.Close()

	code, signal := t.exit()
	end := p.recordEnd(t, code, signal, lines.lastError())
	if left != nil {
		p.log.Error("processes of a stopped box are still alive", "task", end.ID, "box", end.Box, "error", left)
	}
	p.report(end)
}

func (p *Pool) report(end fleet.Status) {
	p.log.Info("box task stopped", "task", end.ID, "box", end.Box, "server", end.Server,
		"exit_code", end.ExitCode, "signal", end.Signal, "reason", end.Reason, "ran", end.Stopped.Sub(end.Started))
	if p.cfg.OnStop != nil {
		p.cfg.OnStop(end)
	}
}

// runnerGone records that the runner has ended and must not be signalled again.
func (p *Pool) runnerGone(t *task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.exited = true
	if t.killer != nil {
		t.killer.Stop()
	}
}

// exit returns the exit code of a runner that has been waited for, and the name of the
// signal that ended it, "" for none.
func (t *task) exit() (code int, signal string) {
	ps := t.cmd.ProcessState
	if ps == nil {
		return -1, ""
	}
	if ws, ok := ps.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return ps.ExitCode(), unix.SignalName(ws.Signal())
	}
	return ps.ExitCode(), ""
}

// recordEnd records how the task ended. failure is the last error that the runner has
// logged.
func (p *Pool) recordEnd(t *task, code int, signal, failure string) fleet.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &t.status
	s.State, s.Stopped, s.ExitCode, s.Signal = fleet.Stopped, time.Now(), code, signal
	why := fmt.Sprintf("the runner exited with code %d", code)
	switch {
	case signal != "":
		why = "the runner was killed by " + signal
	case code < 0:
		why = "the runner ended in an unknown way"
	case code > 0 && failure != "":
		why += ": " + failure
	}
	if s.Reason == "" {
		s.Reason = why
	}
	return *s
}

// Stop implements [fleet.Fleet]: SIGTERM to the runner now, SIGKILL to its process
// group after [Config.Grace]. A second Stop changes nothing.
func (p *Pool) Stop(ctx context.Context, id, reason string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if t, ok := p.byID[id]; ok {
		p.stop(t, reason)
	}
	return nil
}

func (p *Pool) stop(t *task, reason string) {
	if t.exited || t.killer != nil {
		return
	}
	t.status.Reason = reason
	t.killer = time.AfterFunc(p.cfg.Grace, func() { p.kill(t) })
	if t.inside != nil {
		t.inside.stop()
		return
	}
	if err := t.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.log.Warn("a box could not be asked to stop", "task", t.status.ID, "error", err)
	}
}

func (p *Pool) kill(t *task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.exited {
		return
	}
	if t.inside != nil {
		t.inside.kill()
		return
	}
	if err := syscall.Kill(-t.status.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		p.log.Warn("a box could not be killed", "task", t.status.ID, "error", err)
	}
}

// Tasks implements [fleet.Fleet].
func (p *Pool) Tasks(ctx context.Context) ([]fleet.Status, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(time.Now())
	list := make([]fleet.Status, 0, len(p.order))
	for _, t := range p.order {
		list = append(list, t.status)
	}
	return list, nil
}

// Traits implements [fleet.Fleet].
func (p *Pool) Traits(string) fleet.Traits {
	return fleet.Traits{Lists: true, Since: p.since}
}

// Close stops all tasks and returns when nothing of them runs any more. If ctx ends first,
// Close kills the rest and returns an error that wraps the error of ctx. After Close has
// begun, Run fails, and Stop and Tasks still answer. Close may be called again.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	tasks := slices.Clone(p.order)
	for _, t := range tasks {
		p.stop(t, "the fleet was shut down")
	}
	p.mu.Unlock()
	if first {
		close(p.spawns)
	}

	gone := make(chan struct{})
	go func() {
		p.running.Wait()
		close(gone)
	}()
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
	}
	for _, t := range tasks {
		p.kill(t)
	}
	<-gone
	return fmt.Errorf("boxes were killed because they did not stop in time: %w", ctx.Err())
}

func (p *Pool) active() int {
	n := 0
	for _, t := range p.order {
		if t.status.State != fleet.Stopped {
			n++
		}
	}
	return n
}

// forget drops tasks that stopped longer ago than [fleet.Remembered].
func (p *Pool) forget(now time.Time) {
	kept := p.order[:0]
	for _, t := range p.order {
		if t.status.State == fleet.Stopped && now.Sub(t.status.Stopped) > fleet.Remembered {
			delete(p.byID, t.status.ID)
			delete(p.byToken, t.token)
			continue
		}
		kept = append(kept, t)
	}
	clear(p.order[len(kept):])
	p.order = kept
}

// environment returns the variables of a task's runner.
func (p *Pool) environment(t fleet.Task, id string) map[string]string {
	env := map[string]string{}
	maps.Copy(env, p.cfg.Env)
	maps.Copy(env, t.Env)
	env[taskEnv] = id
	return env
}

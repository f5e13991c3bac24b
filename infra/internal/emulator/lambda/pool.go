package lambda

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
	"github.com/dormouse-mcp/dormouse/infra/local/journal"
)

// initTimeout is how long a process may take until it asks for its first invocation.
const initTimeout = 10 * time.Second

// FunctionConfig describes one function. All fields but Args, Temp, Clean and Env are required.
type FunctionConfig struct {
	Name string // letters, digits, "-" and "_"; of one function only
	Path string // the program, absolute; its folder is the working directory
	Args []string
	// Temp is a folder in which each process has a folder of its own as TMPDIR, as each
	// environment on Lambda has its own /tmp. Clean is called for that folder when the
	// process has ended: it ends what the process left running, and removes the folder.
	// "": TMPDIR is that of the environment.
	Temp  string
	Clean func(folder string)
	// Env is added to the environment of the pool ("NAME=value"; the last entry for a
	// name wins). Functions inherit nothing from this program.
	Env []string
	// Timeout is the longest time of one invocation, up to the last byte of its answer.
	// After it the pool kills the process.
	Timeout      time.Duration
	MaxInstances int // how many processes may exist at the same time
}

// PoolConfig says how a Pool runs its functions. All fields but Began are required.
type PoolConfig struct {
	Functions []FunctionConfig
	// Env is the environment of every function, besides the variables that Lambda sets.
	// PATH, HOME and TMPDIR have defaults (the usual folders, /tmp, /tmp).
	Env        []string
	SleepAfter time.Duration // how long the pool keeps an idle process
	StopGrace  time.Duration // time between SIGTERM and SIGKILL
	// Output is called with each line that a function writes to stdout or stderr. The line
	// has no line end and is cut at 64 KiB. Several goroutines may call it at once.
	Output   func(function, line string)
	Began    func(pid int, payload []byte) // called when a process gets an invocation; must not block
	Recorder *journal.Recorder             // told of every process
	Logger   *slog.Logger
}

// Pool runs functions as processes of this machine. It starts a process when an
// invocation finds no free one, reuses the last used one first, and stops idle ones.
// It is safe for concurrent use and must be closed.
type Pool struct {
	cfg       PoolConfig
	env       atomic.Pointer[[]string] // of processes that are started from now on
	functions map[string]*function
	names     []string
	instances sync.Map // id in the Runtime API's path -> *instance
	listener  net.Listener
	server    *http.Server
	spawns    chan func()
	running   sync.WaitGroup // instances
	closeOnce sync.Once
}

var _ Invoker = (*Pool)(nil)

// NewPool opens the Runtime API on a free port of loopback. Each process has a secret
// path of its own there. NewPool starts no process, but keeps a thread and a goroutine
// until Close.
func NewPool(cfg PoolConfig) (*Pool, error) {
	p := &Pool{cfg: cfg, functions: map[string]*function{}, spawns: make(chan func())}
	p.env.Store(&cfg.Env)
	for _, fc := range cfg.Functions {
		p.functions[fc.Name] = &function{pool: p, FunctionConfig: fc, instances: map[*instance]bool{}}
		p.names = append(p.names, fc.Name)
	}
	var lc net.ListenConfig
	var err error
	if p.listener, err = lc.Listen(context.Background(), "tcp", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("open the Runtime API: %w", err)
	}
	p.server = &http.Server{
		Handler:  newRuntimeAPI(&p.instances),
		ErrorLog: slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelWarn),
	}
	go func() {
		if err := p.server.Serve(p.listener); !errors.Is(err, http.ErrServerClosed) {
			cfg.Logger.Error("the runtime api has stopped", "error", err)
		}
	}()
	go p.spawner()
	return p, nil
}

// spawner starts all processes from one thread that lives as long as the pool. If that
// thread ended, the Linux kernel would act as if the parent of its children had died.
func (p *Pool) spawner() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for spawn := range p.spawns {
		spawn()
	}
}

// Invoke implements [Invoker].
func (p *Pool) Invoke(ctx context.Context, name string, payload []byte) (*Invocation, error) {
	return p.InvokeFor(ctx, name, "", payload)
}

// Full reports whether InvokeFor would fail with [ErrThrottled] now.
func (p *Pool) Full(name, tenant string) bool {
	f := p.functions[name]
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.full(tenant)
}

// InvokeFor is Invoke for a tenant: a process serves one tenant and never gets an invocation of
// another one. Invoke is for the tenant "".
func (p *Pool) InvokeFor(ctx context.Context, name, tenant string, payload []byte) (*Invocation, error) {
	f := p.functions[name]
	inv := newInvocation(f, tenant, payload)
	if err := f.submit(inv); err != nil {
		return nil, fmt.Errorf("invoke function %s: %w", name, err)
	}
	select {
	case r := <-inv.result:
		return r.answer, r.err
	case <-ctx.Done():
	}
	if f.abandon(inv) {
		return nil, fmt.Errorf("waiting for function %s: %w", name, ctx.Err())
	}
	r := <-inv.result
	return r.answer, r.err
}

// States of an instance.
const (
	StateStarting = "starting" // not ready yet
	StateIdle     = "idle"
	StateBusy     = "busy"
	StateStopping = "stopping" // asked to stop, or being killed
)

// Names returns the names of all functions in the order of their configuration.
func (p *Pool) Names() []string { return p.names }

// Renew sets the environment of all functions, as in PoolConfig, and replaces their
// processes. It stops idle ones now, and the others when they have answered. Invocations
// from now on get a process with the new environment.
func (p *Pool) Renew(env []string) {
	p.env.Store(&env)
	for _, f := range p.functions {
		f.renew()
	}
}

// Close stops all processes, including busy ones, with SIGTERM and, after StopGrace,
// SIGKILL. It returns when all have ended. If ctx ends first, Close kills them at once and
// returns ctx's error. After Close, Invoke fails with ErrClosed. Close may be called
// again.
func (p *Pool) Close(ctx context.Context) error {
	for _, f := range p.functions {
		f.close()
	}
	err := awsapi.Wait(ctx, &p.running)
	if err != nil {
		err = fmt.Errorf("functions were killed because they did not stop in time: %w", err)
		for _, f := range p.functions {
			f.killAll()
		}
		p.running.Wait()
	}
	p.closeOnce.Do(func() { close(p.spawns) })
	return errors.Join(err, p.server.Close())
}

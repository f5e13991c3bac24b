package lambda

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
	"github.com/dormouse-mcp/dormouse/infra/local/journal"
)

// FunctionConfig describes one function. All fields but Args, Temp, Clean and Env are required.
type FunctionConfig struct {
	Name string
	Path string // the program, absolute; its folder is the working directory
	Args []string
	// Temp, if not "", is a folder in which each process has a folder of its own as TMPDIR, as
	// each environment on Lambda has its own /tmp. When the process has ended, the pool calls
	// Clean with the process's folder. Clean kills what the process has left running, and
	// removes the folder.
	Temp  string
	Clean func(folder string)
	// Env is added to [PoolConfig].Env. Functions do not inherit the environment of this
	// program.
	Env []string
	// Timeout is the longest time from an invocation until its process asks for the next one.
	// After that time the pool kills the process.
	Timeout      time.Duration
	MaxInstances int // how many processes may exist at the same time
}

// PoolConfig says how a Pool runs its functions. All fields but Began are required.
type PoolConfig struct {
	Functions  []FunctionConfig
	Env        []string                      // added to the variables that Lambda sets, for every function
	SleepAfter time.Duration                 // how long the pool keeps an idle process
	StopGrace  time.Duration                 // time between SIGTERM and SIGKILL
	Output     func(function, line string)   // gets each line that a function writes to stdout or stderr
	Began      func(pid int, payload []byte) // called when a process gets an invocation; must not block
	Recorder   *journal.Recorder             // records the start and the end of every process
	Logger     *slog.Logger
}

// Pool runs functions as processes of this machine. It must be closed.
type Pool struct {
	cfg       PoolConfig
	env       atomic.Pointer[[]string] // the environment of processes that are started from now on
	functions map[string]*function
	instances sync.Map // each *instance, by its id
	listener  net.Listener
	server    *http.Server
	running   sync.WaitGroup // the goroutines of instances
}

// NewPool opens a pool, and its Runtime API on a free port of loopback. There each process has a
// secret path of its own.
func NewPool(cfg PoolConfig) (*Pool, error) {
	p := &Pool{cfg: cfg, functions: map[string]*function{}}
	p.env.Store(&cfg.Env)
	for _, fc := range cfg.Functions {
		p.functions[fc.Name] = &function{pool: p, FunctionConfig: fc, instances: map[*instance]bool{}}
	}
	var lc net.ListenConfig
	var err error
	if p.listener, err = lc.Listen(context.Background(), "tcp", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("open the Runtime API: %w", err)
	}
	p.server = &http.Server{Handler: p.runtimeAPI(), ErrorLog: slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelWarn)}
	go func() {
		if err := p.server.Serve(p.listener); !errors.Is(err, http.ErrServerClosed) {
			cfg.Logger.Error("the runtime api has stopped", "error", err)
		}
	}()
	return p, nil
}

// Invoke implements [Invoker].
func (p *Pool) Invoke(ctx context.Context, name string, payload []byte) (*Invocation, error) {
	return p.InvokeFor(ctx, name, "", payload)
}

// InvokeFor is Invoke for a tenant: a process serves one tenant and never gets an invocation of
// another one. Invoke is for the tenant "".
func (p *Pool) InvokeFor(ctx context.Context, name, tenant string, payload []byte) (*Invocation, error) {
	f, inv := p.functions[name], newInvocation(tenant, payload)
	if f == nil {
		return nil, fmt.Errorf("invoke function %s: %w", name, ErrUnknown)
	}
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

// Full reports whether InvokeFor would fail with [ErrThrottled] now. The pool must have the function.
func (p *Pool) Full(name, tenant string) bool {
	f := p.functions[name]
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.full(tenant)
}

// Renew sets the environment of all functions, as in PoolConfig, and replaces their
// processes: idle ones now, and the others when they have answered.
func (p *Pool) Renew(env []string) {
	p.env.Store(&env)
	for _, f := range p.functions {
		f.renew()
	}
}

// Close stops all processes with SIGTERM and, after StopGrace, SIGKILL. It returns when all have
// ended. If ctx ends first, it kills them at once and returns ctx's error.
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
	return errors.Join(err, p.server.Close())
}

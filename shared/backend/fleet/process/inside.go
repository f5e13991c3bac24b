package process

import (
	"context"
	"maps"
	"os"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
)

// inside ends a task in this program, in two ways.
type inside struct{ stop, kill func() }

// startInside starts and registers a task in this program. The caller holds mu.
func (p *Pool) startInside(ft fleet.Task) (id string) {
	id = Inside + "/" + uuid.NewString()
	ctx, stop := context.WithCancel(context.Background())
	killed := make(chan struct{})
	t := p.register(ft, id, os.Getpid())
	t.inside = &inside{stop: stop, kill: sync.OnceFunc(func() { close(killed) })}
	env := maps.Clone(p.cfg.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, ft.Env)
	env[taskEnv] = id
	go p.follow(ctx, killed, t, t.status, env)
	return id
}

// follow runs a task inside, from its start to its end.
func (p *Pool) follow(ctx context.Context, killed <-chan struct{}, t *task, started fleet.Status, env map[string]string) {
	defer p.running.Done()
	defer t.inside.stop()
	p.log.Info("box task started", "task", started.ID, "box", started.Box, "server", started.Server)
	said := &lines{pool: p, of: started}
	code := p.cfg.Inside(ctx, killed, env, said.line)
	p.runnerGone(t)
	p.report(p.recordEnd(t, code, "", said.last()))
}

// lines passes the log lines of a task inside to Config.Output, one after another.
type lines struct {
	pool *Pool
	of   fleet.Status

	mu      sync.Mutex
	failure string // the last error in them
}

func (l *lines) line(line string) {
	line = strings.ToValidUTF8(line[:min(len(line), maxLine)], "\uFFFD")
	l.mu.Lock()
	defer l.mu.Unlock()
	if why := errorOf(line); why != "" {
		l.failure = why
	}
	if l.pool.cfg.Output != nil {
		l.pool.cfg.Output(l.of, line)
	}
}

func (l *lines) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure
}

package process

import (
	"context"
	"os"
	"sync"

	"github.com/google/uuid"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
)

// inside ends a task that runs in this program: stop asks it to end, as SIGTERM asks a runner,
// and kill ends it at once, as SIGKILL does.
type inside struct{ stop, kill func() }

// startInside starts and registers a task in this program. The caller holds mu.
func (p *Pool) startInside(ft fleet.Task) (id string) {
	id = Inside + "/" + uuid.NewString()
	ctx, stop := context.WithCancel(context.Background())
	killed := make(chan struct{})
	t := p.register(ft, id, os.Getpid())
	t.inside = &inside{stop: stop, kill: sync.OnceFunc(func() { close(killed) })}
	go p.follow(ctx, killed, t, t.status, p.environment(ft, id))
	return id
}

// follow runs a task in this program, from its start to its end.
func (p *Pool) follow(ctx context.Context, killed <-chan struct{}, t *task, started fleet.Status, env map[string]string) {
	defer p.running.Done()
	defer t.inside.stop()
	p.log.Info("box task started", "task", started.ID, "box", started.Box, "server", started.Server)
	out := &output{pool: p, of: started}
	code := p.cfg.Inside(ctx, killed, env, out.line)
	p.runnerGone(t)
	p.report(p.recordEnd(t, code, "", out.lastError()))
}

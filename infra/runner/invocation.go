package runner

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/box/runner"
)

// invocationLinger is how long a runner in a Lambda function stays connected after it has told the
// host that the box sleeps.
const invocationLinger = 200 * time.Millisecond

// invocation is the runner of one Lambda invocation.
type invocation struct {
	base environment // the environment of this program, without settings of boxes
	log  *slog.Logger
	made atomic.Pointer[prepared] // the box, nil before prepare has made it
}

// host runs the box of an invocation until it sleeps, a newer runner runs it, or ctx ends.
func (g *invocation) host(ctx context.Context, i fleet.Invitation, deadline time.Time) fleet.Status {
	end := i.End()
	end.Started = time.Now()
	err := g.run(ctx, i, deadline)
	end.Stopped, end.Reason = time.Now(), "the runner exited with code 0"
	if err != nil {
		g.log.Error("the box ended", "error", err)
		end.ExitCode, end.Reason = ExitCode(err), "the box ended with an error; its log has the cause"
	}
	return end
}

func (g *invocation) run(ctx context.Context, i fleet.Invitation, deadline time.Time) error {
	env := environment(maps.Clone(i.Env))
	env["DORMOUSE_BOX_TASK"] = i.Task
	c, err := assignment(env, g.log)
	if err != nil {
		return err
	}
	ctx, retire := context.WithCancel(ctx)
	defer retire()
	var link *runner.Runner
	c.Linger, c.Deadline, c.Retire = invocationLinger, deadline, retire
	c.Begin = func(launch map[string]string) (runner.Started, error) {
		settings := maps.Clone(g.base)
		maps.Copy(settings, launch)
		p, err := prepare(ctx, settings, ownEnvironment(), c, nil)
		if err != nil {
			return runner.Started{}, err
		}
		p.connect(link)
		g.made.Store(p)
		return runner.Started{Executor: p.box, Digest: p.server.Definition(), Idle: p.server.Idle, Longest: p.server.ToolTimeout}, nil
	}
	link = runner.New(c)
	err = live(ctx, link, nil, g.made.Load)
	if p := g.made.Load(); p != nil {
		p.remove()
		p.keep.sweep(context.WithoutCancel(ctx), g.log)
	}
	return errors.Join(err, endDescendants())
}

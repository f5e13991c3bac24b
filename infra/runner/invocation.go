package runner

import (
	"context"
	"errors"
	"maps"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/box/runner"
)

// invocationLinger is how long a runner in a Lambda function stays connected after it has told the
// host that the box sleeps.
const invocationLinger = 200 * time.Millisecond

// host runs the box of an invocation until it sleeps, a newer runner runs it, or ctx ends. The argument
// base is the environment of this program, without settings of boxes.
func (b *bootstrap) host(ctx context.Context, base environment, i fleet.Invitation, deadline time.Time) fleet.Status {
	end := i.End()
	end.Started = time.Now()
	err := b.run(ctx, base, i, deadline)
	end.Stopped, end.Reason = time.Now(), "the runner exited with code 0"
	if err != nil {
		b.log.Error("the box ended", "error", err)
		end.ExitCode, end.Reason = ExitCode(err), "the box ended with an error; its log has the cause"
	}
	return end
}

func (b *bootstrap) run(ctx context.Context, base environment, i fleet.Invitation, deadline time.Time) error {
	env := environment(maps.Clone(i.Env))
	env["DORMOUSE_BOX_TASK"] = i.Task
	c, err := assignment(env, b.log)
	if err != nil {
		return err
	}
	ctx, retire := context.WithCancel(ctx)
	defer retire()
	var link *runner.Runner
	var made atomic.Pointer[prepared] // the box, nil before prepare has made it
	c.Linger, c.Deadline, c.Retire = invocationLinger, deadline, retire
	c.Begin = func(launch map[string]string) (runner.Started, error) {
		settings := maps.Clone(base)
		maps.Copy(settings, launch)
		p, err := prepare(ctx, settings, ownEnvironment(), c, nil)
		if err != nil {
			return runner.Started{}, err
		}
		p.connect(link)
		made.Store(p)
		return runner.Started{Executor: p.box, Digest: p.server.Definition(), Idle: p.server.Idle, Longest: p.server.ToolTimeout}, nil
	}
	link = runner.New(c)
	err = live(ctx, link, nil, made.Load)
	if p := made.Load(); p != nil {
		p.remove()
		p.at.keep.sweep(context.WithoutCancel(ctx), b.log)
	}
	return errors.Join(err, endDescendants())
}

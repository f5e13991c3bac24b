package relayhost

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// lease returns b with a new wake lease for owner, and the token of its runner. after says
// that an earlier attempt of the same wake has failed. The caller saves the record.
func (x boxes) lease(b session.Box, owner string, after bool) (leased session.Box, token string) {
	now, token := time.Now(), newToken()
	if after {
		b = retry(b, owner, hashToken(token), now)
	} else {
		b = wake(b, owner, hashToken(token), now)
	}
	b.Place = ""
	if x.Place != nil {
		b.Place = x.Place(b)
	}
	b.Until = now.Add(x.startTimeout(b))
	return b, token
}

// startTimeout returns how long the place of a box may take to start it.
func (c Config) startTimeout(b session.Box) time.Duration {
	return cmp.Or(c.Fleet.Traits(b.Place).StartTimeout, c.StartTimeout)
}

// launch returns the environment of an invited runner for b.
func (c Config) launch(b session.Box) (map[string]string, error) {
	env, err := c.Launch(b)
	if err == nil && b.Era != "" {
		env[frame.EnvEra] = b.Era
	}
	return env, err
}

// # Places that do not list their tasks

const (
	// lifetimeSlack is how much longer than a place's Lifetime a task may seem to live.
	lifetimeSlack = 90 * time.Second
	// goneAfter is the least time between two looks at a connection that must both find it
	// closed. A runner that lives has connected again by then.
	goneAfter = time.Minute
)

// compareUnlisted finds out whether a box is lost whose place does not list its tasks.
// Any of these means that it is: the program that held the task has ended; the place's
// Lifetime has passed since the last change of the record; the connection was closed twice,
// goneAfter apart, and the runner has not come back.
func (w *Sweeper) compareUnlisted(ctx context.Context, b session.Box, can fleet.Traits) error {
	switch {
	case b.State == session.Starting && b.Changed.Before(w.Since):
		b.Failure = programEnded()
		return w.again(ctx, b)
	case b.State != session.Awake:
		return nil // a start that never completes becomes overdue
	case b.Changed.Before(w.Since), can.Lifetime > 0 && longAgo(b.Changed, can.Lifetime+lifetimeSlack):
		return w.lost(ctx, b, stopFailure(fleet.Status{}, false))
	}
	closed, err := w.closed(ctx, b)
	switch {
	case err != nil:
		return err
	case !closed && b.Gone.IsZero():
		return nil
	case !closed:
		b.Gone = time.Time{}
	case b.Gone.IsZero() || time.Since(b.Gone) < -maxSkew:
		b.Gone = time.Now()
	case time.Since(b.Gone) < goneAfter:
		return nil
	case can.Stops:
		if err := w.Fleet.Stop(ctx, b.Task, "its connection is gone"); err != nil {
			return err
		}
		return w.lost(ctx, b, stopFailure(fleet.Status{}, false))
	default:
		return w.lost(ctx, b, stopFailure(fleet.Status{}, false))
	}
	return ignoreConflict(w.Store.SaveBox(ctx, b))
}

// closed reports whether the connection of an awake box is closed. It posts a nudge, which
// a runner that lives answers by asking for its inbox.
func (w *Sweeper) closed(ctx context.Context, b session.Box) (bool, error) {
	err := w.post(ctx, b.Conn, frame.Nudge{})
	if errors.Is(err, session.Closed) {
		return true, nil
	}
	return false, err
}

// isFor reports whether the report t of a task's end concerns the present runner of b. A
// place that does not list its tasks may start two for one token. The second one is fenced,
// and the digest of its runner is another. A report without a runner comes from a task that
// ended without a word. It counts if the box's connection is closed too.
func (w *Sweeper) isFor(ctx context.Context, b session.Box, t fleet.Status) (bool, error) {
	switch {
	case !runs(b, t):
		return false, nil
	case b.State != session.Awake || w.Fleet.Traits(b.Place).Lists:
		return true, nil
	case t.Runner != "":
		return t.Runner == fleet.RunnerDigest(b.Runner), nil
	default:
		return w.closed(ctx, b)
	}
}

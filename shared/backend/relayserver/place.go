package relayserver

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// lease returns b with a new lease to wake the box, and the one-time token of the runner. The
// argument owner names the holder of the lease. failed says that an earlier attempt to start the
// box has failed. The caller saves the record.
func (x *boxes) lease(b storage.Box, owner string, failed bool) (leased storage.Box, token string) {
	now, token := time.Now(), rand.Text()
	if failed {
		b = retry(b, owner, hashToken(token), now)
	} else {
		b = wake(b, owner, hashToken(token), now)
	}
	b.Tenant, b.Server = b.ID.Parts()
	if b.Code = ""; x.Code != nil {
		b.Code = x.Code(b.Server)
	}
	b.Place = ""
	if x.Place != nil {
		b.Place = x.Place(b)
	}
	b.Until = now.Add(x.startTimeout(b))
	return b, token
}

// startTimeout returns how long a box may take to start, which depends on its place.
func (c Config) startTimeout(b storage.Box) time.Duration {
	return cmp.Or(c.Fleet.Traits(b.Place).StartTimeout, c.StartTimeout)
}

// launch returns the variables of [Config].Launch for b, with the server's era if it is known.
func (c Config) launch(b storage.Box) (map[string]string, error) {
	env, err := c.Launch(b)
	if err == nil && b.Era != "" {
		env[frame.EnvEra] = b.Era
	}
	return env, err
}

// The rest of this file is about boxes whose place (see [fleet.Traits]) does not list its tasks.

const (
	// lifetimeSlack is added to a place's Lifetime, because clocks differ and the record was
	// written some time after the start of the task.
	lifetimeSlack = 90 * time.Second
	// A box counts as lost if two checks, at least goneAfter apart, find its connection closed. A
	// living runner tries several times to connect again within goneAfter.
	goneAfter = 20 * time.Second
)

// compareUnlisted is compare for a box in a place that does not list its tasks.
func (w *Sweeper) compareUnlisted(ctx context.Context, b storage.Box) error {
	since := w.Fleet.Traits(b.Place).Since
	switch {
	case b.State == storage.Starting && b.Changed.Before(since):
		b.Failure = programEnded()
		return w.restart(ctx, b)
	case b.State != storage.Awake:
		return nil // if the start never completes, doDue finds it overdue
	case b.Changed.Before(since):
		_, err := w.lost(ctx, b, stopFailure(fleet.Status{}, false))
		return err
	}
	_, err := w.missed(ctx, b)
	return err
}

// missed finds out whether a box is lost that is awake in a place which neither lists tasks nor
// reports their end. The box is lost if the place's Lifetime has passed since the last change of the
// record. It is also lost if its connection was found closed twice, goneAfter apart, and the runner
// has not connected again.
//
// If lost is true, missed has written the loss into the record. The caller must read the
// record again and handle the requests of the lost generation.
func (x *boxes) missed(ctx context.Context, b storage.Box) (lost bool, err error) {
	can := x.Fleet.Traits(b.Place)
	if can.Lists || b.State != storage.Awake {
		return false, nil
	}
	if can.Lifetime > 0 && longAgo(b.Changed, can.Lifetime+lifetimeSlack) {
		return x.lost(ctx, b, stopFailure(fleet.Status{}, false))
	}
	err = x.post(ctx, b.Conn, frame.Look{})
	closed := errors.Is(err, storage.Closed)
	switch {
	case err != nil && !closed:
		return false, err
	case !closed && b.Gone.IsZero():
		return false, nil
	case !closed:
		b.Gone = time.Time{}
	case b.Gone.IsZero() || time.Since(b.Gone) < -maxSkew:
		b.Gone = time.Now()
	case time.Since(b.Gone) < goneAfter:
		return false, nil
	default:
		return x.lost(ctx, b, stopFailure(fleet.Status{}, false))
	}
	return false, except(storage.Conflict, x.Store.SaveBox(ctx, b))
}

package relayhost

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Poster posts frames to the connections of runners.
type Poster = session.Poster

// Config is what the host's end of the relay works with. Store, Poster, Fleet, Sealer
// and Launch are needed; each of the others has a meaning when it is zero.
type Config struct {
	Store  session.Store
	Poster Poster
	// Clients reaches the connections of WebSocket clients. Without it nothing is
	// pushed, and the events stay owed.
	Clients session.Clients
	Fleet   fleet.Fleet
	Sealer  *Sealer
	// Launch returns the environment variables that a runner for a box needs besides
	// those of the relay itself. It fails with NotFound if the server is not configured
	// (any more).
	Launch func(box session.Box) (map[string]string, error)
	// Elsewhere reports whether a box is only a name under which another part of the
	// program keeps items and handles them. [Sweeper.Sweep] skips such boxes. nil means
	// there are none.
	Elsewhere func(session.BoxID) bool
	// ListLag is how long the fleet's list may take to show a new task.
	ListLag time.Duration
	// TenantBoxes is about how many boxes of one tenant may run at a time. A request
	// that would wake one more is Busy. 0 means any number.
	TenantBoxes int
	// WaitingCalls is about how many requests may wait for one box that is not up. One
	// more is Busy. Each of them holds a function, and the functions that handle the
	// box's frames need some left. 0 means any number.
	WaitingCalls int
	// Snapshots gives runners their URLs. nil refuses every request for one.
	Snapshots Snapshots
	// Kept reports whether the sessions of a server leave a snapshot while their box
	// sleeps; nil means no server's do. Forget removes what a generation of a box, or
	// an older one, has saved for an owner; it is nil where this function has no right
	// to do so.
	Kept   func(server string) bool
	Forget func(ctx context.Context, box session.BoxID, owner string, gen session.Generation) error
	// StartTimeout is how long a box may take from the wake to its hello; 3 min by
	// default.
	StartTimeout time.Duration
	// EventAge is how long events are kept (see host.Limits); session.EventAge by
	// default.
	EventAge time.Duration
	Log      *slog.Logger
	// Meter counts each handled frame, and Frame then writes a log line for it. nil
	// counts nothing and logs no frames.
	Meter session.Meter
}

// maxAttempts is how often a box is started for one wake.
const maxAttempts = 2

// maxUnanswered is how often rouse writes a wake lease without an answer from the
// store. A lease that was stored all the same runs out like that of a function that
// died.
const maxUnanswered = 3

// boxes is the part that Backend, Handler and Sweeper share: the life of a box record,
// and the outlet that takes events to clients.
type boxes struct {
	Config
	out host.Outlet
}

func newBoxes(c Config) boxes {
	if c.StartTimeout == 0 {
		c.StartTimeout = 3 * time.Minute
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.EventAge == 0 {
		c.EventAge = session.EventAge
	}
	return boxes{c, host.Outlet{Store: c.Store, Clients: c.Clients}}
}

// rouse makes sure that a box which is asleep is started, and returns the record it saw
// last. Of several callers at once only one starts the box, because the lease is a
// conditional write. A box that has no record yet gets tenant and server.
func (x boxes) rouse(ctx context.Context, id session.BoxID, tenant, server string) (session.Box, error) {
	owner := session.NewNonce()
	for unanswered := 0; ; {
		b, err := x.Store.Box(ctx, id)
		if err != nil {
			return b, err
		}
		mine := b.State == session.Starting && b.Owner == owner
		if b.State != session.Asleep && !mine {
			return b, nil
		}
		// The answer to an earlier write of this lease was lost. Replace the lease by a
		// new one: the old token was lost too, so no runner has been started with it.
		b.Tenant, b.Server = tenant, server
		now, token := time.Now(), newToken()
		if mine {
			b = retry(b, owner, hashToken(token), now, now.Add(x.StartTimeout))
		} else {
			b = wake(b, owner, hashToken(token), now, now.Add(x.StartTimeout))
		}
		if err := x.Store.SaveBox(ctx, b); err != nil {
			if errors.Is(err, session.Unavailable) {
				unanswered++
			} else if !errors.Is(err, session.Conflict) {
				return b, err
			}
			if unanswered == maxUnanswered || ctx.Err() != nil {
				return b, err
			}
			continue
		}
		b.Rev++
		return x.start(ctx, b, token)
	}
}

// start runs a task for the lease just taken. It tries a failed start once more, at
// once. Then it gives the box up, and the waiting requests end with an error.
func (x boxes) start(ctx context.Context, b session.Box, token string) (session.Box, error) {
	for {
		err := x.run(ctx, b, token)
		if err == nil {
			return b, nil
		}
		x.Log.WarnContext(ctx, "box start failed", "box", b.ID, "generation", b.Gen, "attempt", b.Attempt, "error", err)
		b.Failure = session.Failure{Phase: phaseUnavailable, Detail: startFailure(err), At: time.Now()}
		if b.Attempt >= maxAttempts || errors.Is(err, session.NotFound) || errors.Is(err, fleet.ErrDisabled) {
			return b, x.giveUp(ctx, b)
		}
		now := time.Now()
		token = newToken()
		b = retry(b, b.Owner, hashToken(token), now, now.Add(x.StartTimeout))
		if err := x.Store.SaveBox(ctx, b); err != nil {
			return b, err
		}
		b.Rev++
	}
}

// maxSkew is more than the clocks of two functions usually differ, or one machine's
// clock before and after it was set. A time that is further in the future was written
// by a wrong clock and counts as old. Otherwise it would hold for as long as that clock
// was wrong.
const maxSkew = 2 * time.Minute

// overdue reports whether the time for a start is over.
func (x boxes) overdue(b session.Box) bool {
	left := time.Until(b.Until)
	return left < 0 || left > x.StartTimeout+maxSkew
}

// longAgo reports whether t is longer ago than age.
func longAgo(t time.Time, age time.Duration) bool {
	past := time.Since(t)
	return past > age || past < -maxSkew
}

// startFailure returns what a client is told of a failed start. The text says what to
// do. It has none of the fleet's own words, which may name hosts and accounts.
func startFailure(err error) string {
	switch {
	case errors.Is(err, fleet.ErrCapacity):
		return "there is no room for another box now; try again in a minute"
	case errors.Is(err, fleet.ErrDisabled):
		return "boxes are switched off here, so that no stdio server runs; trying again does not help"
	case errors.Is(err, session.NotFound):
		return "the server is not configured any more"
	default:
		return "the box could not be started; the operator's log has the cause"
	}
}

func (x boxes) run(ctx context.Context, b session.Box, token string) error {
	env, err := x.Launch(b)
	if err != nil {
		return err
	}
	env[frame.EnvBox], env[frame.EnvGeneration], env[frame.EnvToken] = string(b.ID), strconv.FormatInt(int64(b.Gen), 10), token
	env[frame.EnvPass] = x.Sealer.Pass(b.ID)
	if b.Era != "" {
		env[frame.EnvEra] = b.Era
	}
	_, err = x.Fleet.Run(ctx, fleet.Task{ClientToken: ClientToken(b.ID, b.Gen), Box: string(b.ID), Server: b.Server, Env: env})
	return err
}

// ClientToken returns the fleet's idempotency token for one generation of a box. It
// also tells which generation a stopped task belonged to.
func ClientToken(id session.BoxID, gen session.Generation) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s#%d", id, gen))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// giveUp puts a box back to sleep whose start failed for good, and ends the requests
// that wait for it.
func (x boxes) giveUp(ctx context.Context, b session.Box) error {
	if err := x.Store.SaveBox(ctx, lose(b, b.Failure, time.Now())); err != nil {
		return err
	}
	return x.endItems(ctx, b.ID, func(it session.Item) bool { return it.State == session.Waiting }, b.Failure)
}

// endItems ends the requests of those items of a box that match, and deletes the items.
func (x boxes) endItems(ctx context.Context, id session.BoxID, match func(session.Item) bool, why session.Failure) error {
	items, err := x.Store.Items(ctx, id)
	if err != nil {
		return err
	}
	for _, it := range items {
		if match(it) {
			if err := x.endItem(ctx, it, why); err != nil {
				return err
			}
		}
	}
	return nil
}

// overItem handles an item that was taken by a generation which b says is over. The
// caller must have read b before the item's log. A generation that ended with a bye had
// nothing in flight. If such an item has no new event in the log, it was claimed by a
// pull that came too late and was not executed: overItem releases it for another
// generation. Any other item that has no end gets an error.
func (x boxes) overItem(ctx context.Context, b session.Box, it session.Item) (released bool, err error) {
	if b.Clean(it.Gen) {
		tail, err := x.Store.Tail(ctx, it.Address.Session, it.ID)
		if err != nil {
			return false, err
		}
		if tail.Last == it.Base {
			if released, err = x.Store.Release(ctx, it.Box, it.ID, it.Gen); err != nil || released {
				return released, err
			}
		}
		if tail.Final {
			// The runner's events were all acked before its bye, so nothing is left to
			// be pushed.
			return false, x.Store.DeleteItem(ctx, it.Box, it.ID, it.Gen)
		}
	}
	return false, x.endItem(ctx, it, failureOf(b, it.Gen))
}

// endItem ends a request with an error and then removes its item. It takes the item
// first, for generation 0. No runner can have the item then. A request that its box has
// suspended since the item was read goes on.
func (x boxes) endItem(ctx context.Context, it session.Item, why session.Failure) error {
	return x.endItemWith(ctx, it, failureError(it.Box, why))
}

func (x boxes) endItemWith(ctx context.Context, it session.Item, why *wire.Error) error {
	if taken, err := x.take(ctx, it); err != nil || !taken {
		return err
	}
	if err := x.endWith(ctx, it.Address, why); err != nil {
		return err
	}
	return x.Store.DeleteItem(ctx, it.Box, it.ID, 0)
}

// take takes an item for generation 0. taken is false if the item has changed since it
// was read, or has ended.
func (x boxes) take(ctx context.Context, it session.Item) (taken bool, err error) {
	if it.State == session.Taken && it.Gen == 0 {
		return true, nil // by a function that may have died
	}
	if it.State != session.Waiting {
		ends := it
		ends.State, ends.Gen, ends.Questions, ends.Raw = session.Taken, 0, nil, nil
		return x.Store.SwapItem(ctx, it, ends)
	}
	_, err = x.Store.Claim(ctx, it.Box, it.ID, 0)
	if errors.Is(err, session.Conflict) || errors.Is(err, session.NotFound) {
		return false, nil
	}
	return err == nil, err
}

// end writes the error that ends a request, unless its stream has ended. The last batch
// of a dead runner may compete for the same place at the log's end. One of the two
// wins, and the other looks again.
func (x boxes) end(ctx context.Context, a session.Address, why session.Failure) error {
	return x.endWith(ctx, a, failureError(a.Box, why))
}

func (x boxes) endWith(ctx context.Context, a session.Address, why *wire.Error) error {
	return x.out.Fail(ctx, a, why, time.Now().Add(x.EventAge))
}

// The error phases that this end finds out about by itself. The others come from the
// box.
const (
	phaseUnavailable = "box_unavailable"
	phaseConnect     = "relay_connect"
	phaseRuntime     = "runtime"
	phaseToolCall    = "tool_call"
)

// failureError returns the error that a client gets for a failure.
func failureError(box session.BoxID, f session.Failure) *wire.Error {
	data := map[string]any{"phase": f.Phase, "box": box}
	switch {
	case f.Signal != "":
		data["signal"] = f.Signal
	case f.Exit != 0:
		data["exit_code"] = f.Exit
	}
	if !f.At.IsZero() {
		data["since"] = f.At.UTC().Format(time.RFC3339)
	}
	return &wire.Error{Code: wire.CodeInternal, Message: f.Phase + ": " + f.Detail, Data: data}
}

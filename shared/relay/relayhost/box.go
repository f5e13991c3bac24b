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

// Config is what the host's end of the relay works with. All fields but Clients,
// Log and the durations are needed.
type Config struct {
	Store  session.Store
	Poster Poster
	// Clients reaches the connections of WebSocket clients. Without it nothing is
	// pushed, and what should be stands owed.
	Clients session.Clients
	Fleet   fleet.Fleet
	Sealer  *Sealer
	// Launch gives what a runner for a box has to be told besides what the relay
	// itself tells it; it fails for a server that is not configured (any more).
	Launch func(box session.Box) (map[string]string, error)
	// Elsewhere says that a box is only a name, under which somebody else keeps items
	// and sees to them; nil: there are none.
	Elsewhere func(session.BoxID) bool
	// ListLag is how young a task may be that the fleet's list does not show yet.
	ListLag time.Duration
	// TenantBoxes is how many boxes of one tenant may run at a time, more or less; a
	// request that would wake one more is Busy. 0 is any number.
	TenantBoxes int
	// WaitingCalls is how many requests may wait for one box that is not up, more or
	// less; one more is Busy. A function is held for each of them, of which those that
	// handle the box's frames must find some left. 0 is any number.
	WaitingCalls int
	// Snapshots is where this function gives runners URLs for; nil gives none.
	Snapshots Snapshots
	// Kept says that the sessions of a server leave a snapshot while their box sleeps.
	// Forget removes what a generation of a box, or an older one, has kept of an owner.
	// nil for no server's, and where this function cannot.
	Kept   func(server string) bool
	Forget func(ctx context.Context, box session.BoxID, owner string, gen session.Generation) error
	// StartTimeout is how long a box may take from the wake to its hello; 3 min.
	StartTimeout time.Duration
	// EventAge is how long events are kept, see host.Limits; session.EventAge.
	EventAge time.Duration
	Log      *slog.Logger
	// Meter is told of each frame that was handled, and its log line is then written.
	// nil for none.
	Meter session.Meter
}

// maxAttempts is how often a box is started for one wake.
const maxAttempts = 2

// maxUnanswered is how often a wake lease is written without an answer. One that
// was stored all the same, and lost, runs out as that of a function that died.
const maxUnanswered = 3

// boxes is what all of the host's end shares: the life of a box record, and the
// way of events to clients.
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

// rouse sees to it that somebody starts a box that is asleep, and returns the
// record it saw last. N callers at once start one: the lease is a conditional
// write. tenant and server are what a box nobody has written yet gets.
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
		// A lease whose answer was lost is given up for a new one: its token went
		// with the answer, and nobody has been started with it.
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

// start runs a task for the lease just taken. A start that fails is tried once
// more at once; then the box is given up and whoever waits gets an error.
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

// maxSkew is more than the clocks of two functions, or of one machine before and after
// it was set, differ as a rule. What was noted by a clock that was wrong by more is
// taken for old: it would otherwise hold for as long as the clock was wrong.
const maxSkew = 2 * time.Minute

// overdue says that a start has had its time.
func (x boxes) overdue(b session.Box) bool {
	left := time.Until(b.Until)
	return left < 0 || left > x.StartTimeout+maxSkew
}

// longAgo says that something is older than an age.
func longAgo(t time.Time, age time.Duration) bool {
	past := time.Since(t)
	return past > age || past < -maxSkew
}

// startFailure is what a client is told of a start that failed: what to do, but
// nothing of the fleet's own words, which may name hosts and accounts.
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

// ClientToken is the fleet's idempotency token for one generation of a box; with
// it a stopped task is known to be that generation's.
func ClientToken(id session.BoxID, gen session.Generation) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s#%d", id, gen))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// giveUp puts a box back to sleep whose start failed for good, and ends what
// waits for it.
func (x boxes) giveUp(ctx context.Context, b session.Box) error {
	if err := x.Store.SaveBox(ctx, lose(b, b.Failure, time.Now())); err != nil {
		return err
	}
	return x.endItems(ctx, b.ID, func(it session.Item) bool { return it.State == session.Waiting }, b.Failure)
}

// endItems ends the requests of those items of a box that match, and deletes
// them.
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

// overItem sees to an item that was taken by a generation that is over, as b
// says, which must have been read before. One that ended by its own bye had
// nothing in flight: what it took from the inbox and has no new event in the log was
// claimed by a pull that came too late, was not executed, and may go to another.
// Anything else ends in an error.
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
			// All it said was acked before its bye, so that nothing is left to be pushed.
			return false, x.Store.DeleteItem(ctx, it.Box, it.ID, it.Gen)
		}
	}
	return false, x.endItem(ctx, it, failureOf(b, it.Gen))
}

// endItem gives a request its error, then removes its item. Whoever ends a request
// takes its item first, for generation 0: no runner can have it then, and a request
// that its box has suspended since the item was read goes on.
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

// take takes an item for generation 0; taken is false if somebody else has changed it,
// or it has ended.
func (x boxes) take(ctx context.Context, it session.Item) (taken bool, err error) {
	if it.State == session.Taken && it.Gen == 0 {
		return true, nil // by somebody who may have died
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

// end writes the error that ends a request, unless its stream has ended. Both
// this and the last batch of a dead runner are written at the log's end: one of
// them wins, the other looks again.
func (x boxes) end(ctx context.Context, a session.Address, why session.Failure) error {
	return x.endWith(ctx, a, failureError(a.Box, why))
}

func (x boxes) endWith(ctx context.Context, a session.Address, why *wire.Error) error {
	return x.out.Fail(ctx, a, why, time.Now().Add(x.EventAge))
}

// The error phases this end can find out about itself; the others come from the
// box.
const (
	phaseUnavailable = "box_unavailable"
	phaseConnect     = "relay_connect"
	phaseRuntime     = "runtime"
	phaseToolCall    = "tool_call"
)

// failureError is how a failure reaches a client.
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

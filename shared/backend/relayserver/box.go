package relayserver

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// validity is how long a deliver frame may be executed. It must be shorter than the time for
// which a runner remembers the ids of deliveries.
const validity = 10 * time.Minute

// maxAttempts limits the attempts to start a box before its requests fail.
const maxAttempts = 2

// maxUnanswered is after how many writes without an answer from the store rouse gives up. If the
// store has the lease of one of them nevertheless, that lease expires.
const maxUnanswered = 3

// boxes is what Backend, Handler and Sweeper share. It changes box records, handles the requests in
// inboxes, and brings events into the log and to clients.
type boxes struct {
	Config
	out sessions.Publisher
}

func newBoxes(c Config) *boxes {
	c.StartTimeout, c.EventAge = cmp.Or(c.StartTimeout, 3*time.Minute), cmp.Or(c.EventAge, storage.EventAge)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	if c.Observer == nil {
		c.Observer = observe.Log(c.Log)
	}
	return &boxes{c, sessions.Publisher{Store: c.Store, Clients: c.Clients, Held: c.Held}}
}

// rouse starts a box that is asleep, and returns the record that it read or wrote last. Only one
// of several callers starts the box, because a conditional write takes the lease.
func (x *boxes) rouse(ctx context.Context, id storage.BoxID) (storage.Box, error) {
	owner := storage.NewNonce()
	for unanswered := 0; ; {
		b, err := x.Store.Box(ctx, id)
		if err != nil {
			return b, err
		}
		b.ID = id
		l, err := x.insideLife(ctx, b)
		var failed *startFailed
		switch {
		case errors.As(err, &failed):
			return b, x.endWaiting(ctx, id, "", failed.why)
		case err != nil:
			return b, err
		case l != nil:
			return l.record, nil
		}
		mine := b.State == storage.Starting && b.Owner == owner
		if b.State != storage.Asleep && !mine {
			return b, nil
		}
		// If the box has this caller's lease, the answer to an earlier write was lost. The caller
		// has started no runner with the token of that lease, and takes a new one.
		b, token := x.lease(b, owner, mine)
		if err := x.Store.SaveBox(ctx, b); err != nil {
			if errors.Is(err, storage.Unavailable) {
				unanswered++
			} else if !errors.Is(err, storage.Conflict) {
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

// start runs a task for the lease just taken, in up to maxAttempts attempts. After the last
// failure it gives the box up, and the waiting requests end with an error.
func (x *boxes) start(ctx context.Context, b storage.Box, token string) (storage.Box, error) {
	for {
		err := x.run(ctx, b, token)
		if err == nil {
			return b, nil
		}
		x.Log.WarnContext(ctx, "box start failed", "box", b.ID, "generation", b.Gen, "attempt", b.Attempt, "error", err)
		b.Failure = startFailure(err)
		if b.Attempt >= maxAttempts || errors.Is(err, storage.NotFound) || errors.As(err, new(fleet.Refusal)) {
			return b, x.giveUp(ctx, b)
		}
		b, token = x.lease(b, b.Owner, true)
		if err := x.Store.SaveBox(ctx, b); err != nil {
			return b, err
		}
		b.Rev++
	}
}

// maxSkew is more than the clocks of two instances usually differ, and more than a clock usually
// jumps when it is set. A time that is further in the future counts as old: a wrong clock wrote it.
const maxSkew = 2 * time.Minute

// overdue reports whether the time for the start of a box is over.
func (x *boxes) overdue(b storage.Box) bool {
	left := time.Until(b.Until)
	return left < 0 || left > x.startTimeout(b)+maxSkew
}

func longAgo(t time.Time, age time.Duration) bool {
	past := time.Since(t)
	return past > age || past < -maxSkew
}

func (x *boxes) run(ctx context.Context, b storage.Box, token string) error {
	env, err := x.launch(b)
	if err != nil {
		return err
	}
	if x.Fleet.Traits(b.Place).Invites {
		env = map[string]string{frame.EnvRelayURL: env[frame.EnvRelayURL]} // the runner gets the other variables in its welcome
	}
	env[frame.EnvBox], env[frame.EnvGeneration], env[frame.EnvToken] = string(b.ID), strconv.FormatInt(int64(b.Gen), 10), token
	env[frame.EnvPass] = x.Sealer.Pass(b.ID)
	_, err = x.Fleet.Run(ctx, fleet.Task{ClientToken: ClientToken(b.ID, b.Gen), Box: string(b.ID), Server: b.Server, Place: b.Place, Env: env})
	return err
}

// ClientToken returns the fleet's idempotency token for one generation of a box.
func ClientToken(id storage.BoxID, gen storage.Generation) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s#%d", id, gen))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// giveUp records that a box is asleep because its start failed for good, and ends the requests
// that wait for it.
func (x *boxes) giveUp(ctx context.Context, b storage.Box) error {
	if err := x.Store.SaveBox(ctx, lose(b, b.Failure, time.Now())); err != nil {
		return err
	}
	x.emptied(ctx, b.ID)
	return x.endWaiting(ctx, b.ID, "", b.Failure)
}

// A server with many sessions has several boxes, which have numbers (see [storage.BoxID]). The
// record of box 0 says which boxes are full, so that new sessions avoid them.

// markFull writes into the record of box 0 whether a box is full.
func (x *boxes) markFull(ctx context.Context, id storage.BoxID, full bool) error {
	first, n := id.First()
	for {
		b, err := x.Store.Box(ctx, first)
		if err != nil {
			return err
		}
		next := b.MarkFull(n, full)
		if next.Full == b.Full {
			return nil
		}
		if err := x.Store.SaveBox(ctx, next); !errors.Is(err, storage.Conflict) {
			return err
		}
	}
}

// emptied records that a box which has fallen asleep is not full. For box 0, [lose] and [bye] have
// done that. If emptied fails, new sessions avoid the box until it next falls asleep.
func (x *boxes) emptied(ctx context.Context, id storage.BoxID) {
	if _, n := id.First(); n == 0 {
		return
	}
	if err := x.markFull(ctx, id, false); err != nil {
		x.Log.WarnContext(ctx, "a box that is asleep still counts as full", "box", id, "error", err)
	}
}

// endWaiting ends the requests of a session that wait for a box, or of all sessions for "".
func (x *boxes) endWaiting(ctx context.Context, id storage.BoxID, session storage.ID, why storage.Failure) error {
	return x.each(ctx, id, func(it storage.Item) error {
		if it.State != storage.Waiting || session != "" && it.Address.Session != session {
			return nil
		}
		return x.endItem(ctx, it, why)
	})
}

// The function do is called for each item of a box, until it returns an error.
func (x *boxes) each(ctx context.Context, id storage.BoxID, do func(storage.Item) error) error {
	all, err := x.Store.Items(ctx, id)
	for i := 0; err == nil && i < len(all); i++ {
		err = do(all[i])
	}
	return err
}

// overItem handles an item whose generation is over according to the record b. It releases the item
// for another generation if the old one said bye and the log has no new event of the item: then the
// request was not executed. Otherwise it ends the request with an error, unless the request has
// ended.
func (x *boxes) overItem(ctx context.Context, b storage.Box, it storage.Item) (released bool, err error) {
	if b.Clean(it.Gen) {
		tail, err := x.Store.Tail(ctx, it.Address.Session, it.ID)
		if err != nil {
			return false, err
		}
		if tail.Last == it.Base {
			if released, err = x.release(ctx, it); err != nil || released {
				return released, err
			}
		}
		if tail.Final {
			// Before its bye the runner had an ack for every event, so there is nothing
			// left to push.
			return false, x.Store.DeleteItem(ctx, it.Box, it.ID, it.Gen)
		}
	}
	return false, x.endItem(ctx, it, failureOf(b, it.Gen))
}

// release makes an item wait again that generation it.Gen has taken, unless the item has no message.
func (x *boxes) release(ctx context.Context, it storage.Item) (released bool, err error) {
	taken, err := x.Store.Item(ctx, it.Box, it.ID) // items of a list have no message
	if err != nil || taken.State != storage.Taken || taken.Gen != it.Gen || taken.Raw == nil {
		return false, except(storage.NotFound, err)
	}
	waits := taken
	waits.State, waits.Gen = storage.Waiting, 0
	return x.Store.SwapItem(ctx, taken, waits)
}

// endItem ends a request with an error and then removes its item. It takes the item first, so
// that no runner can execute the request. If the box has suspended the request since the item
// was read, endItem does nothing.
func (x *boxes) endItem(ctx context.Context, it storage.Item, why storage.Failure) error {
	return x.endItemWith(ctx, it, errorOf(it, why))
}

func (x *boxes) endItemWith(ctx context.Context, it storage.Item, why *wire.Error) error {
	if taken, err := x.takeItem(ctx, it); err != nil || !taken {
		return err
	}
	if err := x.out.Fail(ctx, it.Address, why, time.Now().Add(x.EventAge)); err != nil {
		return err
	}
	return x.Store.DeleteItem(ctx, it.Box, it.ID, 0)
}

// takeItem changes an item so that no runner can take it any more: it gets generation 0, which
// stands for instances. taken is false if the item has changed since it was read, or is gone.
func (x *boxes) takeItem(ctx context.Context, it storage.Item) (taken bool, err error) {
	if it.State == storage.Taken && it.Gen == 0 {
		return true, nil // an instance has taken the item before, and may have died
	}
	if it.State != storage.Waiting {
		ends := it
		ends.State, ends.Gen, ends.Questions, ends.Raw = storage.Taken, 0, nil, nil
		return x.Store.SwapItem(ctx, it, ends)
	}
	_, err = x.Store.Claim(ctx, it.Box, it.ID, 0)
	if errors.Is(err, storage.Conflict) || errors.Is(err, storage.NotFound) {
		return false, nil
	}
	return err == nil, err
}

// end writes the error that ends a request, unless its stream has ended.
func (x *boxes) end(ctx context.Context, a storage.Address, why storage.Failure) error {
	return x.out.Fail(ctx, a, failureError(a.Box, why), time.Now().Add(x.EventAge))
}

// post sends a frame to a runner. It cuts a long frame into parts.
func (x *boxes) post(ctx context.Context, conn string, f frame.Frame) error {
	if id, ok := strings.CutPrefix(conn, insideConn); ok && x.Inside != nil {
		return x.Inside.post(storage.BoxID(id), f)
	}
	for _, piece := range frame.Cut(frame.Encode(f), "", storage.NewNonce()) {
		if err := x.Poster.Post(ctx, conn, piece); err != nil {
			return err
		}
	}
	return nil
}

// mayBeAsked reports whether a client has declared any capability that lets a server ask it:
// elicitation, sampling or roots. Other clients have no suspended calls.
func mayBeAsked(s storage.Session) bool {
	return slices.ContainsFunc([]string{"elicitation", "sampling", "roots"}, func(what string) bool {
		return wire.Lookup(s.Init, "capabilities", what) != nil
	})
}

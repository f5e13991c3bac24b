package sessions

import (
	"context"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Follow opens the legacy SSE stream of an HTTP+SSE session (MCP 2024-11-05,
// basic/transports). An earlier event stream of the same session is closed within fifteen
// seconds.
//
// The stream begins after *from, the last event that the client says it has. Follow
// lowers *from to the end of the stream if it is higher. If from is nil, the stream
// begins after the last event that [Call.Report] recorded. until is the planned end of
// the stream. A session that has not been initialized lives at least until
// [Limits].InitTimeout after that end.
//
// Cost: one read, one write, and a read for each look, as for [Manager.Listen].
//
// Errors: NotFound (session), Unavailable.
func (h *Manager) Follow(ctx context.Context, c Caller, id storage.ID, from *storage.Index, until time.Time) (*Call, error) {
	s, _, err := h.Load(ctx, c, id)
	if err != nil {
		return nil, err
	}
	call := &Call{manager: h, session: s.ID, stream: storage.LegacySSE, begun: time.Now()}
	call.follower = &follower{nonce: storage.NewNonce()[:nonceLen], read: call.begun}
	if from != nil {
		tail, err := h.store.Tail(ctx, id, storage.LegacySSE)
		if err != nil {
			return nil, err
		}
		*from = min(*from, tail.Last)
	}
	s, err = h.update(ctx, s, func(s *storage.Session) bool {
		s.Primary = storage.Lease{Nonce: call.follower.nonce, Until: until}
		if from != nil {
			s.Delivered = *from
		}
		if least := until.Add(h.limits.InitTimeout); s.State == storage.Opened && s.Expires.Before(least) {
			s.Expires = least
		}
		return true
	})
	call.after = s.Delivered
	return call, err
}

// Report records the last event that was sent to a client that follows the legacy SSE
// stream, because most clients never report it themselves. The caller calls it when the
// event stream ends. If it does not, the next event stream repeats those events.
//
// Errors: Unavailable.
func (c *Call) Report(ctx context.Context, sent storage.Index) error {
	_, err := amend(ctx, c.manager.store, c.session, func(s *storage.Session) bool {
		if s.Primary.Nonce != c.follower.nonce || s.Delivered >= sent {
			return false
		}
		s.Delivered = sent
		return true
	})
	return unlessGone(err)
}

// superseded ends the call if there is a newer follower or the session has ended. It reads
// the session at most every five seconds. If the store fails, the next look tries again.
func (c *Call) superseded(ctx context.Context) {
	if time.Since(c.follower.read) < lookEvery {
		return
	}
	s, _, err := c.manager.store.Load(ctx, c.session, "")
	if err != nil && !errors.Is(err, storage.NotFound) {
		return
	}
	c.follower.read = time.Now()
	c.done = err != nil || s.State == storage.Ended || s.Primary.Nonce != c.follower.nonce
}

// Say writes messages of Dormouse itself to the legacy SSE stream of a session. For an HTTP+SSE
// client these are answers that needed no server. In the session of a group they are also marks
// for the functions that hold the client's stream ([Manager.Joins]).
func (h *Manager) Say(ctx context.Context, id storage.ID, raws ...[]byte) error {
	return Publisher{Store: h.store}.appendOut(ctx, storage.Batch{Session: id, Stream: storage.LegacySSE, Events: raws, Expires: time.Now().Add(h.limits.EventAge)})
}

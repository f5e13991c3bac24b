package sessions

import (
	"context"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Follow opens the event stream of an HTTP+SSE session (MCP 2024-11-05, basic/transports). An earlier
// response that still reads the stream ends within fifteen seconds.
//
// The Call begins after *from, the last event that the client says it has. If the stream is shorter,
// Follow sets *from to the end of the stream. If from is nil, the Call begins after the last event
// that [Call.Report] recorded. The argument until is when the response is planned to end. A session
// without initialize outlives the response by at least [Limits.InitTimeout].
//
// Cost: one read, one write, and at most one read every five seconds, as for [Manager.Listen].
//
// Errors: NotFound (session), Unavailable.
func (h *Manager) Follow(ctx context.Context, c Caller, id storage.ID, from *storage.Index, until time.Time) (*Call, error) {
	u, err := h.use(ctx, c, id)
	if err != nil {
		return nil, err
	}
	call := &Call{manager: h, session: u.session.ID, stream: storage.LegacySSE, begun: time.Now()}
	call.follower = &follower{nonce: storage.NewNonce()[:nonceLen], read: call.begun}
	if from != nil {
		tail, err := h.store.Tail(ctx, id, storage.LegacySSE)
		if err != nil {
			return nil, err
		}
		*from = min(*from, tail.Last)
	}
	err = u.update(ctx, func(s *storage.Session) bool {
		s.Primary = storage.Lease{Nonce: call.follower.nonce, Until: until}
		if from != nil {
			s.Delivered = *from
		}
		if least := until.Add(h.limits.InitTimeout); s.State == storage.Opened && s.Expires.Before(least) {
			s.Expires = least
		}
		return true
	})
	call.after = u.session.Delivered
	return call, err
}

// Report records the last event that was sent to an HTTP+SSE client, because most of these clients
// send no Last-Event-ID. The transport calls it when the response ends. Without Report the next
// response repeats the events of this one.
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
	return storage.IgnoreNotFound(err)
}

// superseded ends the call if the client has opened a newer response for the same stream, or if the
// session has ended. It reads the session at most every five seconds.
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

// Say writes messages of Dormouse itself to the stream [storage.LegacySSE] of a session. An HTTP+SSE
// client gets them: they are answers that needed no server. In a session with a group, the instances
// that read the client's streams also get messages there ([Manager.Joins]).
func (h *Manager) Say(ctx context.Context, id storage.ID, raws ...[]byte) error {
	return Publisher{Store: h.store}.appendOut(ctx, storage.Batch{Session: id, Stream: storage.LegacySSE, Events: raws, Expires: time.Now().Add(h.limits.EventAge)})
}

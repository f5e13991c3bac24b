package host

import (
	"context"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// follower is an event stream's place at the legacy SSE stream of a session of HTTP+SSE:
// the newest one has it.
type follower struct {
	nonce string
	read  time.Time // when the session was looked at last
}

// Follow opens the legacy SSE stream of a session of HTTP+SSE (MCP 2024-11-05,
// basic/transports). An event stream that followed it before is closed within
// fifteen seconds. It begins behind from, what the client says it has; if that is
// nil, behind what it was sent when [Call.Report] was called last. A session that
// has not been initialized lives at least until the stream is planned to end.
//
// Cost: one read, one write, and a read for each look, as for [Streams.Listen].
//
// Errors: NotFound (session), Unavailable.
func (h Streams) Follow(ctx context.Context, c Caller, id session.ID, from *session.Index, until time.Time) (*Call, error) {
	s, _, err := h.Load(ctx, c, id)
	if err != nil {
		return nil, err
	}
	call := &Call{host: h.core, session: s.ID, stream: session.LegacySSE, begun: time.Now()}
	call.follower = &follower{nonce: session.NewNonce()[:nonceLen], read: call.begun}
	if from != nil {
		tail, err := h.store.Tail(ctx, id, session.LegacySSE)
		if err != nil {
			return nil, err
		}
		*from = min(*from, tail.Last)
	}
	s, err = h.update(ctx, s, func(s *session.Session) bool {
		s.Primary = session.Lease{Nonce: call.follower.nonce, Until: until}
		if from != nil {
			s.Delivered = *from
		}
		if least := until.Add(h.limits.InitTimeout); s.State == session.Opened && s.Expires.Before(least) {
			s.Expires = least
		}
		return true
	})
	call.after = s.Delivered
	return call, err
}

// Report notes up to which event a client that follows the legacy SSE stream was sent it,
// because most never say so themselves. It is for the end of the event stream; if it
// is not reached, the next one repeats what was sent.
//
// Errors: Unavailable.
func (c *Call) Report(ctx context.Context, sent session.Index) error {
	s, _, err := c.host.store.Load(ctx, c.session, "")
	if err == nil {
		_, err = c.host.update(ctx, s, func(s *session.Session) bool {
			if s.Primary.Nonce != c.follower.nonce || s.Delivered >= sent {
				return false
			}
			s.Delivered = sent
			return true
		})
	}
	return unlessGone(err)
}

// superseded is what a follower that has heard nothing looks for now and then: a
// newer one, or the end of the session. Trouble with the store is left to the
// next look.
func (c *Call) superseded(ctx context.Context) {
	if time.Since(c.follower.read) < lookEvery {
		return
	}
	s, _, err := c.host.store.Load(ctx, c.session, "")
	if err != nil && !errors.Is(err, session.NotFound) {
		return
	}
	c.follower.read = time.Now()
	c.done = err != nil || s.State == session.Ended || s.Primary.Nonce != c.follower.nonce
}

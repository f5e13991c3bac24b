package sessions

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Listen opens the standalone stream (GET) if lastEventID is "" or the id of an event of this stream.
// For an event of another stream, Listen continues that stream ([use.resume]). Of several GETs of a
// session one, the primary, gets the events; the others are standbys. Listen returns Closed if the
// server never sends anything outside of a request.
//
// The session's record has a lease that names the primary. The lease ends when the primary's response
// should end, or earlier if the context of its Next ends. A GET whose lastEventID comes from the primary
// takes the lease over at once. Any other GET takes the lease when five times Pace have passed
// since the lease ended. If there are more standbys than mostStandbys, the one that has waited
// longest is sent away.
//
// Cost: one read, one write, and at most one read every five seconds (see [Call.Next]).
//
// Errors: Invalid (lastEventID), NotFound (session), Closed, Unavailable.
func (h *Manager) Listen(ctx context.Context, c Caller, id storage.ID, lastEventID string) (*Call, error) {
	var from storage.EventID
	if lastEventID != "" {
		var err error
		if from, err = storage.ParseEventID(lastEventID); err != nil {
			return nil, err
		}
	}
	u, err := h.use(ctx, c, id)
	if err != nil {
		return nil, err
	}
	if from.Stream != storage.Standalone {
		return u.resume(ctx, from)
	}
	s := u.session
	if s.State == storage.Ready && !s.Pushes {
		return nil, storage.Errorf(storage.Closed, "server %q never sends anything outside a request; there is no standalone stream", s.Server)
	}
	call := &Call{manager: h, session: s.ID, after: from.Index, begun: time.Now()}
	if lastEventID != "" {
		call.polls = pollsOf(from.Nonce) + 1
	}
	call.lease = &listener{
		nonce: storage.NewNonce()[:nonceLen], until: call.begun.Add(call.Hold()), from: from,
		record: &s, read: call.begun,
	}
	return call, nil
}

// claim makes this GET the primary ([Manager.Listen]) if the lease is free or an earlier GET of the same
// client holds it, and otherwise a standby. After casTries conflicts it waits up to stagger before the
// next attempt.
func (c *Call) claim(ctx context.Context) error {
	l := c.lease
	for range casTries {
		if l.held || c.done || time.Now().Before(l.again) {
			return nil
		}
		if err := c.reload(ctx); err != nil || c.done {
			return err
		}
		s, now := *l.record, time.Now()
		l.record = nil
		var err error
		switch {
		case l.owns(s) || !free(s, c.manager.limits, now).After(now):
			err = c.take(ctx, s, now)
		case l.waits:
			l.wait(s, c.manager.limits)
		default:
			err = c.queue(ctx, s, now)
		}
		if !errors.Is(err, storage.Conflict) {
			return err
		}
	}
	l.again = time.Now().Add(rand.N(stagger))
	return nil
}

// reload reads the session into l.record, unless l.record is younger than lookEvery. It ends the
// call if the session has ended, another GET has taken the lease, or this standby was sent away.
func (c *Call) reload(ctx context.Context) error {
	l := c.lease
	if l.record != nil && time.Since(l.read) < lookEvery {
		return nil
	}
	s, _, err := c.manager.store.Load(ctx, c.session, "")
	if err != nil && !errors.Is(err, storage.NotFound) {
		return err
	}
	l.record, l.read = &s, time.Now()
	switch {
	case err != nil || s.State == storage.Ended:
		c.done = true
	case l.held && s.Primary.Nonce != l.nonce, l.waits && l.place(s) < 0:
		c.done, c.pause = true, idleRetry
		c.polls++ // so that the last cursor differs from the first: some clients break when they get an id twice
	}
	return nil
}

// look checks, every five seconds, whether the session has ended or another GET has replaced this
// one, because no event reports that.
func (c *Call) look(ctx context.Context) {
	l := c.lease
	if c.follower != nil {
		c.superseded(ctx)
	}
	if l == nil || time.Since(l.read) < lookEvery || !time.Now().Before(l.until) {
		return
	}
	if l.record = nil; c.reload(ctx) == nil && !l.held && !c.done {
		l.wait(*l.record, c.manager.limits)
	}
}

// take gives this GET the lease ([Manager.Listen]). If the client of the last holder has come back, the
// stream starts after the event that this client names. For any other client it starts after the highest
// event that any client has named (s.Delivered): nobody knows which later events have arrived.
func (c *Call) take(ctx context.Context, s storage.Session, now time.Time) error {
	l := c.lease
	if l.from.Index > s.Delivered {
		tail, err := c.manager.store.Tail(ctx, c.session, storage.Standalone)
		if err != nil {
			return err
		}
		s.Delivered = max(s.Delivered, min(l.from.Index, tail.Last))
	}
	after := s.Delivered
	if l.owns(s) && l.from.Index > 0 {
		after = min(l.from.Index, s.Delivered)
	}
	s.Primary = storage.Lease{Nonce: l.nonce, Until: l.until}
	s.Standby = l.others(s, now)
	if err := c.manager.store.Save(ctx, s); err != nil {
		return err
	}
	l.held, l.waits, c.after = true, false, after
	return nil
}

// queue makes the call a standby, in place of the earlier GET of its client. If there are too many
// standbys, queue removes the oldest.
func (c *Call) queue(ctx context.Context, s storage.Session, now time.Time) error {
	l := c.lease
	s.Standby = append(l.others(s, now), storage.Lease{Nonce: l.nonce, Until: l.until})
	if over := len(s.Standby) - mostStandbys; over > 0 {
		s.Standby = slices.Delete(s.Standby, 0, over)
	}
	if err := c.manager.store.Save(ctx, s); err != nil {
		return err
	}
	l.waits = true
	l.wait(s, c.manager.limits)
	return nil
}

// leave ends the lease that this GET holds ([Manager.Listen]) if ctx has ended, because the client is
// gone. The stream stays reserved for this client for graceRetries times Pace. If the store
// fails, the lease stays.
func (c *Call) leave(ctx context.Context) {
	if ctx.Err() == nil || c.lease == nil || !c.lease.held {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveWithin)
	defer cancel()
	c.amend(ctx, func(s *storage.Session) bool {
		now := time.Now()
		held := s.Primary.Until.After(now)
		s.Primary.Until = now
		return held
	})
}

// amend changes the record of the session, as update does, if this GET still holds the lease. It ignores
// errors.
func (c *Call) amend(ctx context.Context, change func(s *storage.Session) bool) {
	_, _ = amend(ctx, c.manager.store, c.session, func(s *storage.Session) bool {
		return s.Primary.Nonce == c.lease.nonce && change(s)
	})
}

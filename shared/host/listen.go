package host

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// listener is the place of a GET at the common stream. One GET of a session, the primary,
// holds the lease and gets the events. The others are standbys: they stand in the session's
// record, oldest first, and get nothing until the lease is free. So two GETs never take the
// stream from one another (R9).
type listener struct {
	nonce   string
	until   time.Time       // when this GET plans to close
	from    session.EventID // the event id that the client sent, zero if none
	again   time.Time       // when to ask for the lease again
	held    bool
	waits   bool             // this GET is a standby
	current bool             // it has read everything that was there, so further events are new
	record  *session.Session // the session as read last, nil once used
	read    time.Time        // when record was read
}

const (
	// graceRetries is how long a lease stays reserved for its holder's client after it has
	// run out, in multiples of the pace. That client was told to come back after twice the
	// pace. So it finds its place free and reports the events it has had, before another
	// client gets them again.
	graceRetries = 5
	// stagger is how much later each standby asks for a free lease than the standby before
	// it. The oldest gets the lease, and the others do not all write in vain.
	stagger = 50 * time.Millisecond
	// lookEvery is the age at which a record is read again.
	lookEvery = 5 * time.Second
	// casTries is how many conflicts in a row a listener retries at once.
	casTries = 8
)

// Listen opens the common stream (GET). lastEventID is an id that the client was given, or
// "". Of several listeners one gets the events; see [Call.Next]. Listen returns Closed if
// the server never sends anything outside of a request.
//
// A listener takes the lease over if its event id carries the holder's word, because it is
// the holder's client that has come back. Any other listener takes the lease when it has
// been free for five times the pace, and is a standby until then. If there are more standbys
// than [Limits].Standby, the one that has waited longest is sent away.
//
// Cost: one read, one write, and a read for each look (see [Call.Next]).
//
// Errors: Invalid (lastEventID), NotFound (session), Closed, Unavailable.
func (h Streams) Listen(ctx context.Context, c Caller, id session.ID, lastEventID string) (*Call, error) {
	var from session.EventID
	if lastEventID != "" {
		var err error
		if from, err = session.ParseEventID(lastEventID); err != nil {
			return nil, err
		}
	}
	s, _, err := h.Load(ctx, c, id)
	if err != nil {
		return nil, err
	}
	if s.State == session.Ready && !s.Pushes {
		return nil, session.Errorf(session.Closed, "server %q never sends anything outside a request; there is no common stream", s.Server)
	}
	call := &Call{host: h.core, session: s.ID, after: from.Index, begun: time.Now()}
	if lastEventID != "" {
		call.polls = pollsOf(from.Nonce) + 1
	}
	call.lease = &listener{
		nonce: session.NewNonce()[:nonceLen], until: call.begun.Add(call.Hold()), from: from,
		record: &s, read: call.begun,
	}
	return call, nil
}

// claim makes the call the primary if the lease is free or its own, and otherwise a standby.
// After casTries conflicts it puts the next attempt off by up to stagger.
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
		case c.mayTake(s, now):
			err = c.take(ctx, s, now)
		case l.waits:
			l.wait(s, c.host.limits)
		default:
			err = c.queue(ctx, s, now)
		}
		if !errors.Is(err, session.Conflict) {
			return err
		}
	}
	l.again = time.Now().Add(rand.N(stagger))
	return nil
}

// reload reads the session, unless there is an unused record that is younger than lookEvery.
// It ends the call if the session has ended or another listener has taken this one's place.
func (c *Call) reload(ctx context.Context) error {
	l := c.lease
	if l.record != nil && time.Since(l.read) < lookEvery {
		return nil
	}
	s, _, err := c.host.store.Load(ctx, c.session, "")
	if err != nil && !errors.Is(err, session.NotFound) {
		return err
	}
	l.record, l.read = &s, time.Now()
	switch {
	case err != nil || s.State == session.Ended:
		c.done = true
	case l.held && s.Primary.Nonce != l.nonce, l.waits && l.place(s) < 0:
		c.done, c.pause = true, c.idleRetry()
		c.polls++ // so the last cursor differs from the first
	}
	return nil
}

// look checks from time to time whether the session has ended or a listener has lost its
// place, because neither comes as an event. If the store fails, the next look tries again.
func (c *Call) look(ctx context.Context) {
	l := c.lease
	if c.follower != nil {
		c.superseded(ctx)
	}
	if l == nil || time.Since(l.read) < lookEvery || !time.Now().Before(l.until) {
		return
	}
	if l.record = nil; c.reload(ctx) == nil && !l.held && !c.done {
		l.wait(*l.record, c.host.limits)
	}
}

func (c *Call) mayTake(s session.Session, now time.Time) bool {
	return c.lease.owns(s) || !free(s, c.host.limits, now).After(now)
}

// owns reports whether the client's last poll holds the lease.
func (l *listener) owns(s session.Session) bool {
	return l.from.Nonce != "" && s.Primary.Nonce == holderOf(l.from.Nonce)
}

// longestHold is how much longer than Limits.Hold a lease can last. It allows for a function
// that holds its response to its own limit, and for clocks that differ.
const longestHold = 20 * time.Minute

// free returns the time from which any listener may take the lease. It ignores a lease that
// lasts longer than any lease can: a function with a wrong clock gave it.
func free(s session.Session, limits Limits, now time.Time) time.Time {
	if s.Primary.Nonce == "" || s.Primary.Until.After(now.Add(limits.Hold+longestHold)) {
		return time.Time{}
	}
	return s.Primary.Until.Add(graceRetries * limits.Pace)
}

// take makes the call the primary. For the holder's client the stream starts where the
// client says it was cut. For any other client it starts after the highest event that was
// ever reported, because events that arrived on another stream are not sent again. Only a
// report moves Delivered: an event that was sent may not have arrived.
func (c *Call) take(ctx context.Context, s session.Session, now time.Time) error {
	l := c.lease
	if l.from.Index > s.Delivered {
		tail, err := c.host.store.Tail(ctx, c.session, session.Common)
		if err != nil {
			return err
		}
		s.Delivered = max(s.Delivered, min(l.from.Index, tail.Last))
	}
	after := s.Delivered
	if l.owns(s) && l.from.Index > 0 {
		after = min(l.from.Index, s.Delivered)
	}
	s.Primary = session.Lease{Nonce: l.nonce, Until: l.until}
	s.Standby = l.others(s, now)
	if err := c.host.store.Save(ctx, s); err != nil {
		return err
	}
	l.held, l.waits, c.after = true, false, after
	return nil
}

// queue makes the call a standby. It replaces its client's last poll, and the oldest standby
// when no place is left.
func (c *Call) queue(ctx context.Context, s session.Session, now time.Time) error {
	l := c.lease
	s.Standby = append(l.others(s, now), session.Lease{Nonce: l.nonce, Until: l.until})
	if over := len(s.Standby) - c.host.limits.Standby; over > 0 {
		s.Standby = slices.Delete(s.Standby, 0, over)
	}
	if err := c.host.store.Save(ctx, s); err != nil {
		return err
	}
	l.waits = true
	l.wait(s, c.host.limits)
	return nil
}

// others returns the standbys besides this listener and its client's last poll.
func (l *listener) others(s session.Session, now time.Time) []session.Lease {
	return slices.DeleteFunc(slices.Clone(s.Standby), func(x session.Lease) bool {
		return !x.Until.After(now) || x.Nonce == l.nonce || x.Nonce == holderOf(l.from.Nonce)
	})
}

func (l *listener) place(s session.Session) int {
	return slices.IndexFunc(s.Standby, func(x session.Lease) bool { return x.Nonce == l.nonce })
}

// wait puts the next claim off until the lease should be free.
func (l *listener) wait(s session.Session, limits Limits) {
	l.again = free(s, limits, time.Now()).Add(time.Duration(max(l.place(s), 0)) * stagger)
}

// dismiss sends the standbys away because the server has closed the common stream (R13).
// Each finds out at its next look. If the store fails, they stay, which does no harm.
func (c *Call) dismiss(ctx context.Context) {
	for range casTries {
		s, _, err := c.host.store.Load(ctx, c.session, "")
		if err != nil || len(s.Standby) == 0 || s.Primary.Nonce != c.lease.nonce {
			return
		}
		s.Standby = nil
		if err := c.host.store.Save(ctx, s); !errors.Is(err, session.Conflict) {
			return
		}
	}
}

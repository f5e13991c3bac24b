package host

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// listener is a GET's place at the common stream. One GET of a session, the
// primary, holds the lease and gets the events. The others are on standby: they
// stand in the session's record, oldest first, and hear nothing until the lease
// is free. So two GETs never take the stream from one another (R9).
type listener struct {
	nonce   string
	until   time.Time       // when this GET plans to close
	from    session.EventID // what the client reported, zero if it reported nothing
	again   time.Time       // when to ask for the lease again
	held    bool
	waits   bool             // it has a place among the standbys
	current bool             // it has read all there was, so that what comes now is new
	record  *session.Session // what was read last, nil once it has been used
	read    time.Time        // when that was
}

const (
	// graceRetries is how long a lease is kept for its holder's client after it has
	// run out, in multiples of the pace: a client that was told to come back after
	// twice the pace finds its place free and reports what it has had, before
	// another one gets that again.
	graceRetries = 5
	// stagger is how much later than the one before each standby asks for a lease
	// that has become free, so that the oldest gets it and the others do not all
	// write in vain.
	stagger = 50 * time.Millisecond
	// lookEvery is how old a record may be without being read again.
	lookEvery = 5 * time.Second
	// casTries is how often in a row a record is read again because somebody else
	// changed it.
	casTries = 8
)

// Listen opens the common stream (GET). lastEventID is "" or what the client was
// given. Of several listeners one gets the events; see [Call.Next]. Closed if
// the server can never push anything, so that there is no reason to listen.
//
// A listener whose event id carries the word of the lease's holder is that
// holder's client come back, and takes the lease over. Any other takes it when it
// has been free for five times the pace, and is a standby until then; of more
// than [Limits].Standby the one that has waited longest is sent away.
//
// Cost: one read, one write, and a read for each look (see [Call.Next]).
//
// Errors: Invalid, NotFound (session), Closed, Unavailable.
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

// claim makes the call the primary if the lease is free or its own, and a standby
// if not. What conflicts is tried again, at last a little later.
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

// reload reads the session unless that was done just now and has not been used. A
// session that has ended, and a place that others have taken, end the call.
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
		c.polls++ // which makes the last cursor another one than the first
	}
	return nil
}

// look is what a listener that has heard nothing does now and then: a session may
// end, and a place be lost, without an event. Trouble with the store is left to
// the next look.
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

// owns says that the lease is that of the client's last poll.
func (l *listener) owns(s session.Session) bool {
	return l.from.Nonce != "" && s.Primary.Nonce == holderOf(l.from.Nonce)
}

// longestHold is how much longer than Limits.Hold a lease lasts at most, with a function
// that holds its response to its own limit, and clocks that differ.
const longestHold = 20 * time.Minute

// free is when the lease may be taken by anybody. One that lasts longer than any was
// given by a clock that was wrong.
func free(s session.Session, limits Limits, now time.Time) time.Time {
	if s.Primary.Nonce == "" || s.Primary.Until.After(now.Add(limits.Hold+longestHold)) {
		return time.Time{}
	}
	return s.Primary.Until.Add(graceRetries * limits.Pace)
}

// take makes the call the primary. The stream starts where the client says it was
// cut, if it is the holder's. For any other it starts behind all that was ever
// reported: what was delivered on another stream is not told again. Only reports
// move Delivered: what was merely sent may not have arrived.
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

// queue makes the call a standby. It takes the place of its client's last poll,
// and that of the oldest when there is no other.
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

// others are the standbys that are there besides this one.
func (l *listener) others(s session.Session, now time.Time) []session.Lease {
	return slices.DeleteFunc(slices.Clone(s.Standby), func(x session.Lease) bool {
		return !x.Until.After(now) || x.Nonce == l.nonce || x.Nonce == holderOf(l.from.Nonce)
	})
}

func (l *listener) place(s session.Session) int {
	return slices.IndexFunc(s.Standby, func(x session.Lease) bool { return x.Nonce == l.nonce })
}

// wait puts off the next claim until the lease should be free.
func (l *listener) wait(s session.Session, limits Limits) {
	l.again = free(s, limits, time.Now()).Add(time.Duration(max(l.place(s), 0)) * stagger)
}

// dismiss sends the standbys away because the server has closed the common stream
// (R13). Each sees it when it looks next. A store that does not answer leaves them
// where they are, which does no harm.
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

package session

import (
	"context"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Call is a client's wait for the events of one stream: of a request it sent
// (from [Host.Accept]), of one it resumes, or of the common stream (from
// [Host.Resume] and [Host.Listen]). It is used by one goroutine and holds
// nothing that lasts; dropping it loses nothing.
type Call struct {
	host       *Host
	session    ID
	stream     StreamID
	after      Index
	tender     Tender // nil: nobody's duty
	duty       Duty
	begun      time.Time
	ready      []byte // answered in place
	done       bool
	initialize bool
	lease      *lease // of a GET on the common stream
	polls      int    // empty polls in a row before this one
	gap        bool
}

// readyCall is a Call whose only event is there already and is not in any log.
func (h *Host) readyCall(raw []byte) *Call { return &Call{host: h, ready: raw} }

// Done says that the last event has been returned.
func (c *Call) Done() bool { return c.done }

// Stored says that the events are in the log, so that a client can come back for
// them. A request that was answered in place has no log.
func (c *Call) Stored() bool { return c.ready == nil }

// Gap says that events which should have come before those Next returned last
// are gone: the log is bounded. The client has to be told (I4).
func (c *Call) Gap() bool { return c.gap }

// Next returns the next events, at least one, in order; or none when until has
// passed. Before it returns for the first time, with or without events, the
// request has been accepted (I8), even if that takes until after until: what
// comes back without an error may be told to the client.
//
// Errors: Unavailable if no durable trace could be had, or if the store cannot
// be read; ctx's own. After an error Next may be called again.
func (c *Call) Next(ctx context.Context, until time.Time) ([]Event, error) {
	if c.ready != nil && !c.done {
		c.done = true
		return []Event{{Raw: c.ready, Final: true}}, nil
	}
	for !c.done {
		if c.lease != nil {
			if err := c.takeLease(ctx); err != nil {
				return nil, err
			}
		}
		page, err := c.read(ctx, until)
		if err != nil {
			return nil, err
		}
		if len(page.Events) > 0 {
			return c.take(ctx, page)
		}
		now := time.Now()
		if c.tender != nil && !now.Before(c.duty.Next) {
			if c.duty, err = c.tender.Tend(ctx); err != nil {
				return nil, err
			}
		}
		accepted := c.tender == nil || c.duty.Accepted
		if !accepted && now.Sub(c.begun) > c.host.limits.AcceptBy {
			return nil, Errorf(Unavailable, "the box has not given a sign of life in %s, so the request was not accepted; send it again", c.host.limits.AcceptBy)
		}
		if accepted && !now.Before(until) {
			return nil, nil
		}
	}
	return nil, nil
}

// read waits for events until something else is due.
func (c *Call) read(ctx context.Context, until time.Time) (Page, error) {
	if c.lease != nil && !c.lease.held {
		return Page{}, sleepUntil(ctx, earlier(until, c.lease.again))
	}
	wake := until
	if c.tender != nil {
		if c.duty.Next.IsZero() {
			c.duty.Next = c.begun.Add(firstTend)
		}
		if !c.duty.Accepted {
			wake = c.duty.Next
		}
		wake = earlier(wake, c.duty.Next)
	}
	return c.host.store.Wait(ctx, c.session, c.stream, c.after, wake)
}

// firstTend is a little longer than a runner waits before it says that it has
// taken a request (AckWithin), so that a call that is answered quickly costs no
// look at anything but its log.
const firstTend = 1100 * time.Millisecond

func (c *Call) take(ctx context.Context, page Page) ([]Event, error) {
	last := page.Events[len(page.Events)-1]
	if c.initialize && last.Final {
		if err := c.host.initialized(ctx, c.session, last.Raw); err != nil {
			return nil, err
		}
	}
	c.after, c.done, c.polls, c.gap = last.Index, last.Final, 0, page.Gap
	c.duty.Accepted = true // its events are a trace: the mark is written before them
	return page.Events, nil
}

// initialized takes over what a box answered to initialize: an error means that
// there never was a session.
func (h *Host) initialized(ctx context.Context, id ID, response []byte) error {
	s, _, err := h.store.Load(ctx, id, "")
	if err != nil {
		return err
	}
	result := wire.Lookup(response, "result")
	if result == nil {
		_, err = h.quit(ctx, s, QuitNoInit)
		return err
	}
	_, err = h.update(ctx, s, func(s *Session) bool {
		if s.State != Created {
			return false
		}
		s.settle(result)
		return true
	})
	return err
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func sleepUntil(ctx context.Context, t time.Time) error {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

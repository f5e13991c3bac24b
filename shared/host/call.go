package host

import (
	"context"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Call is a client's wait for the events of one stream: of a request it sent
// (from [Host.Accept]), of one it resumes, of the common stream (from
// [Streams.Resume] and [Streams.Listen]), or of the legacy SSE stream (from [Streams.Follow]). It is used by one goroutine and holds
// nothing that lasts; dropping it loses nothing.
type Call struct {
	host    *core
	session session.ID
	stream  session.StreamID
	after   session.Index
	tracker Tracker // nil: nobody's status
	status  Status
	begun   time.Time
	ready   []byte // answered in place
	params  []byte // of a modern client, what was known then; see Host.Learn
	done    bool
	halted  bool      // what was executed here is not any more; see InlineTracker
	lease   *listener // of a GET on the common stream
	polls   int       // empty polls in a row before this one
	gap     bool
	pause   time.Duration // not 0: the response is to be closed, and for how long
	pushed  bool          // events are pushed to the client, too
	unsure  bool          // Check has failed since it succeeded last, maybe between an end and its push

	follower *follower // of an event stream on the legacy SSE stream
}

// readyCall is a Call whose only event is there already and is not in any log.
func (h *core) readyCall(raw []byte) *Call { return &Call{host: h, ready: raw} }

// Done says that nothing more will come: the last event has been returned, or the
// session has ended, or this listener has lost its place to another.
func (c *Call) Done() bool { return c.done }

// Stored says that the events are in the log, so that a client can come back for
// them. A request that was answered in place has no log.
func (c *Call) Stored() bool { return c.ready == nil }

// Gap says that events which should have come before those Next returned last
// are gone: the log is bounded. The client has to be told (I4).
func (c *Call) Gap() bool { return c.gap }

// Close says that the response is to be ended now, whatever its time, and that its
// client is to come back after retry: the server has closed the stream (SEP-1699;
// R13) with the last of the events that Next has returned, or a listener has lost
// its place. The client keeps its place in the stream: the last it is sent is
// [Call.Cursor] with that retry.
func (c *Call) Close() (retry time.Duration, now bool) { return c.pause, c.pause > 0 }

// Held says that the request is executed in this very function, so that its response
// should be held for as long as that is so; see [InlineTracker].
func (c *Call) Held() bool {
	h, ok := c.tracker.(InlineTracker)
	return ok && h.Held()
}

// Next returns the next events, at least one, in order; or none when until has
// passed, or what was executed here has come to a halt (see [InlineTracker]). Before it returns for the first time, with or without events, the
// request has been accepted (I8), even if that takes until after until: what
// comes back without an error may be told to the client. An event that says no
// more than that the stream is closed has no Raw.
//
// A listener returns events only while it is the primary, and when it comes back
// with none before it plans to close it has looked at the session, unless it had
// done so within the last five seconds (one read): it may be Done.
//
// Errors: Unavailable if no durable trace could be had, or if the store cannot
// be read; Unknown if that is so and somebody may execute the request; ctx's own.
// After an error Next may be called again.
func (c *Call) Next(ctx context.Context, until time.Time) ([]session.Event, error) {
	if c.ready != nil && !c.done {
		c.done = true
		return []session.Event{{Raw: c.ready, Final: true}}, nil
	}
	for !c.done {
		if c.lease != nil {
			if err := c.claim(ctx); err != nil || c.done {
				return nil, err
			}
		}
		page, halts, err := c.read(ctx, until)
		if err != nil {
			if err = c.bear(ctx, err); err != nil {
				return nil, err
			}
			continue
		}
		if len(page.Events) > 0 && !c.unsure {
			return c.hand(ctx, page)
		}
		if c.lease != nil && c.lease.held {
			c.lease.current = true
		}
		now := time.Now()
		if c.tracker != nil && (halts || !now.Before(c.status.Next)) {
			status, err := c.tracker.Check(ctx)
			c.unsure = err != nil && c.pushed
			if err != nil {
				if err = c.bear(ctx, err); err != nil {
					return nil, err
				}
				continue
			}
			c.status = status
		}
		accepted := c.tracker == nil || c.status.Accepted
		if !accepted && now.Sub(c.begun) >= c.host.limits.AcceptBy {
			if err := c.giveUp(ctx); err != nil {
				return nil, err
			}
			continue
		}
		if accepted && (halts || !now.Before(until)) {
			c.look(ctx)
			return nil, nil
		}
	}
	return nil, nil
}

// handed is the tracker if somebody may execute the request although nothing is heard
// of that, nil if not.
func (c *Call) handed() Handover {
	if h, ok := c.tracker.(Handover); ok && !c.status.Accepted && h.Handed() {
		return h
	}
	return nil
}

// bear decides on an error before the request was accepted. While somebody may have
// the request, no error may invite its client to send it again: it is tried for as long
// as the request may take to be accepted.
func (c *Call) bear(ctx context.Context, err error) error {
	if c.handed() == nil || ctx.Err() != nil {
		return err
	}
	if time.Since(c.begun) > c.host.limits.AcceptBy {
		return c.unknown(err)
	}
	c.status.Next = time.Now().Add(bearFor)
	return sleepUntil(ctx, c.status.Next)
}

const bearFor = time.Second

// giveUp ends a request that nobody has accepted for too long. If it returns nil, the
// end is in the log, or the request was accepted meanwhile.
func (c *Call) giveUp(ctx context.Context) error {
	h := c.handed()
	if h == nil {
		return session.Errorf(session.Unavailable, "the box has not given a sign of life in %s, so the request was not accepted; send it again", c.host.limits.AcceptBy)
	}
	if err := h.GiveUp(ctx); err != nil {
		return c.unknown(err)
	}
	c.status.Next = time.Now()
	return nil
}

func (c *Call) unknown(cause error) error {
	return session.Errorf(session.Unknown, "the box has not given a sign of life in %s; whether the request was executed is not known", c.host.limits.AcceptBy).Because(cause)
}

// read waits for events until something else is due. halts says that what was
// executed here has come to a halt without an end.
func (c *Call) read(ctx context.Context, until time.Time) (page session.Page, halts bool, err error) {
	if c.lease != nil && !c.lease.held {
		return session.Page{}, false, sleepUntil(ctx, earlier(until, c.lease.again))
	}
	wake := until
	if c.tracker != nil {
		if c.status.Next.IsZero() {
			c.status.Next = c.begun.Add(firstTend)
		}
		if !c.status.Accepted {
			wake = earlier(c.status.Next, c.begun.Add(c.host.limits.AcceptBy))
		}
		wake = earlier(wake, c.status.Next)
	}
	if h, ok := c.tracker.(InlineTracker); ok && !c.halted {
		page, ok, err := h.Watch(ctx, c.after, wake)
		if ok || err != nil {
			return page, false, err
		}
		c.halted, halts, wake = true, true, time.Now()
	}
	page, err = c.host.store.Wait(ctx, c.session, c.stream, c.after, wake)
	return page, halts, err
}

// firstTend is a little longer than a runner waits before it says that it has
// taken a request (AckWithin), so that a call that is answered quickly costs no
// look at anything but its log.
const firstTend = 1100 * time.Millisecond

// hand hands events out, up to the first that closes the response.
func (c *Call) hand(ctx context.Context, page session.Page) ([]session.Event, error) {
	if c.lease != nil && !c.lease.current && c.lease.from.Index == 0 {
		// A client that reports nothing was not there when the stream was closed. Were
		// it sent away by what it is told again, it would never get past it.
		for i := range page.Events {
			page.Events[i].Retry = 0
		}
		c.lease.current = !page.More
	}
	if i := slices.IndexFunc(page.Events, func(e session.Event) bool { return e.Retry > 0 }); i >= 0 {
		page.Events = page.Events[:i+1]
	}
	last := page.Events[len(page.Events)-1]
	c.after, c.done, c.polls, c.gap = last.Index, last.Final, 0, page.Gap
	c.status.Accepted = true // its events are a trace: the mark is written before them
	if c.pause = last.Retry; last.Final {
		c.pause = 0
	}
	if c.pause > 0 && c.lease != nil {
		c.dismiss(ctx)
	}
	return page.Events, nil
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

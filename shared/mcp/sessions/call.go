package sessions

import (
	"context"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Call waits for the events of one stream on behalf of a client. The stream is that of a
// request ([Manager.Accept], [Manager.Listen]), the standalone stream ([Manager.Listen]) or the
// legacy SSE stream ([Manager.Follow]). One goroutine uses a Call. A Call need not be closed.
type Call struct {
	manager *Manager
	session storage.ID
	stream  storage.StreamID
	after   storage.Index
	tracker Tracker // follows the request; nil if nothing has to be done until the events come
	status  Status
	begun   time.Time
	ready   [][]byte // the responses, if no box was asked
	params  []byte   // params that Learn has kept, or nil
	init    []byte   // params of the initialize of the session's client
	done    bool
	halted  bool      // this instance no longer executes the request; see InlineTracker
	lease   *listener // the lease of a GET on the standalone stream, nil for another call
	polls   int       // how many responses in a row had no event, not counting this one
	gap     bool
	pause   time.Duration // if not 0: close the response; the client comes back after this time
	repeat  bool          // an earlier request with the same idempotency key has begun the call
	pushed  bool          // events are also pushed to the client, over its WebSocket or HTTP+SSE stream
	unsure  bool          // the last Check failed, so the end of the request may be in the log and not yet pushed

	once     *once     // the idempotency key of the call, nil for none
	joined   *joined   // set if an earlier request with the same idempotency key has begun the call
	follower *follower // set for the event stream of an HTTP+SSE client
}

// readyCall returns a Call whose only events are these responses, which are in no log.
func (h *Manager) readyCall(raws ...[]byte) *Call { return &Call{manager: h, ready: raws} }

// Client returns the name that the client gave itself in initialize, "" if it gave none or
// the session is not known.
func (c *Call) Client() string { return wire.ClientName(c.init) }

// Done reports whether nothing more will come: Next has returned the last event, the
// session has ended, or another GET has replaced this one as a reader of the stream.
func (c *Call) Done() bool { return c.done }

// Stored reports whether the events are in the log, so that the client can come back for
// them. A request that needed no box has no log.
func (c *Call) Stored() bool { return c.ready == nil && c.joined == nil }

// Boxed reports whether a box executes the request.
func (c *Call) Boxed() bool {
	_, ok := c.tracker.(Handover)
	return ok
}

// Keyed reports whether the client has given the call an idempotency key. A keyed call goes on
// if its client closes the response.
func (c *Call) Keyed() bool { return c.once != nil }

// Repeat reports whether an earlier request with the same idempotency key has begun the call.
func (c *Call) Repeat() bool { return c.repeat }

// Gap reports whether events are missing before those that Next returned last, because the log is
// bounded. The transport must tell the client (I4 in the package comment).
func (c *Call) Gap() bool { return c.gap }

// Close reports whether the response must end now, and how long the client should wait before it comes
// back. The response ends if the server closed the stream with the last event that Next returned
// (SEP-1699), or if another GET took the place of this one. Before the response ends, send [Call.Cursor]
// with retry, so that the client can continue the stream from there.
func (c *Call) Close() (retry time.Duration, now bool) { return c.pause, c.pause > 0 }

// Held reports whether this instance executes the request itself. The transport must keep the
// response open until Held is false; see [InlineTracker].
func (c *Call) Held() bool {
	h, ok := c.tracker.(InlineTracker)
	return ok && h.Held()
}

// Next waits for events and returns them in order. It returns no events if none have come by the
// deadline, or if this instance has stopped executing the request (see [InlineTracker]). An event that
// only closes the stream has no Raw.
//
// The request is accepted (I8 in the package comment) when Next first returns without an error, with or
// without events. That may be after the deadline.
//
// Of several GETs on the standalone stream only one, the primary, gets events. When Next would return
// no events for a GET, it first reads the session, at most every five seconds. If the session has
// ended or another GET has replaced this one, the Call becomes Done.
//
// Errors: Unavailable if the request has no durable trace or the store cannot be read; Unknown
// if a box may execute the request although there is no trace; ctx's error. Next may be called
// again after an error.
func (c *Call) Next(ctx context.Context, deadline time.Time) ([]storage.Event, error) {
	if c.ready != nil && !c.done {
		c.done = true
		events := make([]storage.Event, len(c.ready))
		for i, raw := range c.ready {
			events[i] = storage.Event{Raw: raw, Final: i == len(c.ready)-1}
		}
		return events, nil
	}
	if c.joined != nil && !c.done {
		return c.joinEnd(ctx)
	}
	for !c.done {
		if c.lease != nil {
			if err := c.claim(ctx); err != nil || c.done {
				return nil, err
			}
		}
		page, halts, err := c.read(ctx, deadline)
		if err != nil {
			c.leave(ctx)
			if err = c.bear(ctx, err); err != nil {
				return nil, err
			}
			continue
		}
		if len(page.Events) > 0 && !c.unsure {
			return c.untilClose(ctx, page)
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
		if !accepted && now.Sub(c.begun) >= acceptBy {
			if err := c.giveUp(ctx); err != nil {
				return nil, err
			}
			continue
		}
		if accepted && (halts || !now.Before(deadline)) {
			c.look(ctx)
			return nil, nil
		}
	}
	return nil, nil
}

// handed returns the tracker if a box may execute the request, but has not confirmed that it has the
// request. Otherwise it returns nil.
func (c *Call) handed() Handover {
	if h, ok := c.tracker.(Handover); ok && !c.status.Accepted && h.Handed() {
		return h
	}
	return nil
}

// bear handles an error of the store before the request was accepted. If a box may have the
// request, bear pauses and returns nil, for the caller to try again: a client that gets an error
// sends the request again, and the box would execute the request twice. After acceptBy
// bear returns Unknown.
func (c *Call) bear(ctx context.Context, err error) error {
	if c.handed() == nil || ctx.Err() != nil {
		return err
	}
	if time.Since(c.begun) > acceptBy {
		return c.unknown(err)
	}
	c.status.Next = time.Now().Add(bearFor)
	return storage.Rest(ctx, time.Until(c.status.Next))
}

const bearFor = time.Second

// giveUp ends a request that was not accepted in time. If it returns nil, the end is in
// the log or the request was accepted meanwhile.
func (c *Call) giveUp(ctx context.Context) error {
	h := c.handed()
	if h == nil {
		if _, ok := c.tracker.(Handover); ok {
			c.once.release(ctx) // no box has the request, so a repeat may be executed
		}
		return storage.Errorf(storage.Unavailable, "the box has not given a sign of life in %s, so the request was not accepted; send it again", acceptBy)
	}
	if err := h.GiveUp(ctx); err != nil {
		return c.unknown(err)
	}
	c.status.Next = time.Now()
	return nil
}

func (c *Call) unknown(cause error) error {
	return storage.Errorf(storage.Unknown, "the box has not given a sign of life in %s; whether the request was executed is not known", acceptBy).Because(cause)
}

// read waits for events, at most until the next time at which Next has something else to do. halts
// is true at the first read after this instance has stopped executing the request.
func (c *Call) read(ctx context.Context, until time.Time) (page storage.Page, halts bool, err error) {
	if c.lease != nil && !c.lease.held {
		return storage.Page{}, false, storage.Rest(ctx, time.Until(earlier(until, c.lease.again)))
	}
	wake := until
	if c.tracker != nil {
		if c.status.Next.IsZero() {
			c.status.Next = c.begun.Add(firstTend)
		}
		if !c.status.Accepted {
			wake = earlier(c.status.Next, c.begun.Add(acceptBy))
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
	page, err = c.manager.store.Wait(ctx, c.session, c.stream, c.after, wake)
	return page, halts, err
}

// firstTend is how long after its beginning a call first calls [Tracker.Check]. A runner reports
// that it has taken a request if the answer takes a second, so a quicker call costs no Check.
const firstTend = 1100 * time.Millisecond

// untilClose returns the events of a page, up to the first that closes the response.
func (c *Call) untilClose(ctx context.Context, page storage.Page) ([]storage.Event, error) {
	if c.lease != nil && !c.lease.current && c.lease.from.Index == 0 {
		// The client sent no event id, so it gets the stream from the beginning. Ignore the
		// events at which the server closed an earlier response: without an id, the client would
		// come back to the beginning each time.
		for i := range page.Events {
			page.Events[i].Retry = 0
		}
		c.lease.current = !page.More
	}
	if i := slices.IndexFunc(page.Events, func(e storage.Event) bool { return e.Retry > 0 }); i >= 0 {
		page.Events = page.Events[:i+1]
	}
	last := page.Events[len(page.Events)-1]
	c.after, c.done, c.polls, c.gap = last.Index, last.Final, 0, page.Gap
	c.status.Accepted = true // an event in the log is a durable trace of the request
	if c.pause = last.Retry; last.Final {
		c.pause = 0
	}
	if c.pause > 0 && c.lease != nil {
		c.amend(ctx, func(s *storage.Session) bool { // the server has closed the standalone stream, so no standby has to wait
			some := len(s.Standby) > 0
			s.Standby = nil
			return some
		})
	}
	return page.Events, nil
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// follower makes a Call the reader of the event stream of an HTTP+SSE session. nonce is in the
// session's record while no newer response reads that stream.
type follower struct {
	nonce string
	read  time.Time // when the session was last read
}

// Hold returns how long a response on this call should be held open. Hold is 0 if the events are
// not stored: the client could not come back for them. Hold is short for a GET on the standalone
// stream after more than idlePolls responses without an event.
func (c *Call) Hold() time.Duration {
	switch {
	case !c.Stored():
		return 0
	case c.stream == storage.Standalone && c.polls > idlePolls:
		return min(Pace, c.manager.limits.Hold)
	default:
		return c.manager.limits.Hold
	}
}

const idlePolls = 3

// Retry returns how long the client should wait before it comes back. On a request stream Retry
// is 1 to 5 times the pace, because the client waits for an answer. On the standalone stream
// Retry grows from 2 to 60 times the pace while nothing happens. After the server has closed
// the stream, Retry is the time that the server gave; see [Call.Close].
func (c *Call) Retry() time.Duration {
	if c.pause > 0 {
		return c.pause
	}
	if c.stream != storage.Standalone {
		return time.Duration(min(1+c.polls/10, 5)) * Pace
	}
	return min(time.Duration(2<<min(c.polls, 5))*Pace, idleRetry)
}

// idleRetry is the longest Retry of a Call on the standalone stream.
const idleRetry = 60 * Pace

// Cursor returns an event id that stands for the position after the last event that Next returned.
// Every response begins with a Cursor, so that the client can come back before any event. The id is
// different in each response, except on the stream of HTTP+SSE.
func (c *Call) Cursor() storage.EventID {
	if c.follower != nil {
		return storage.EventID{Stream: storage.LegacySSE, Index: c.after, Nonce: string(c.session)}
	}
	word := storage.NewNonce()[:nonceLen]
	if c.lease != nil {
		word = c.lease.nonce
	}
	return storage.EventID{Stream: c.stream, Index: c.after, Nonce: nonceOf(word, c.polls)}
}

// ID returns the event id of an event of this call. On the stream of HTTP+SSE the id also names
// the session, because a client that comes back sends nothing but the id.
func (c *Call) ID(e storage.Event) storage.EventID {
	id := storage.EventID{Stream: c.stream, Index: e.Index}
	switch {
	case c.lease != nil:
		id.Nonce = nonceOf(c.lease.nonce, 0)
	case c.follower != nil:
		id.Nonce = string(c.session)
	}
	return id
}

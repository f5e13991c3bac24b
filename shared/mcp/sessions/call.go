package sessions

import (
	"context"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Call waits for the events of one stream on behalf of a client. The stream is that of a
// request ([Manager.Accept], [Manager.Resume]), the standalone stream ([Manager.Listen]) or the
// legacy SSE stream ([Manager.Follow]). One goroutine uses a Call. It holds nothing that
// lasts, so it can be dropped at any time.
type Call struct {
	manager *Manager
	session storage.ID
	stream  storage.StreamID
	after   storage.Index
	tracker Tracker // nil: this call tracks nothing
	status  Status
	begun   time.Time
	ready   [][]byte // the responses, if no box was asked
	params  []byte   // of a stateless client: the params that Learn had kept; see Learned
	init    []byte   // params of the initialize of the session's client
	done    bool
	halted  bool      // the function has stopped executing the request; see InlineTracker
	lease   *listener // of a GET on the standalone stream
	polls   int       // empty polls in a row before this one
	gap     bool
	pause   time.Duration // if not 0: close the response; the client comes back after this time
	repeat  bool          // see Repeat
	pushed  bool          // events are pushed to the client, too
	unsure  bool          // Check has failed since its last success, maybe between writing an end and pushing it

	once     *once     // the key of the call, nil for none
	joined   *joined   // set for a call that another request began
	follower *follower // set for an event stream on the legacy SSE stream
}

// readyCall returns a Call whose only events are responses that are in no log.
func (h *Manager) readyCall(raws ...[]byte) *Call { return &Call{manager: h, ready: raws} }

// Client returns the name that the client gave itself in initialize, "" if it gave none or
// the session is not known.
func (c *Call) Client() string { return wire.ClientName(c.init) }

// Done reports whether nothing more will come: Next has returned the last event, the
// session has ended, or another listener has taken this one's place.
func (c *Call) Done() bool { return c.done }

// Stored reports whether the events are in the log, so that the client can come back for
// them. A request that needed no box has no log.
func (c *Call) Stored() bool { return c.ready == nil && c.joined == nil }

// Keyed reports whether the client has given the call a key. Such a call goes on if its
// client closes the response.
func (c *Call) Keyed() bool { return c.once != nil }

// Repeat reports whether an earlier request with the same key has begun the call.
func (c *Call) Repeat() bool { return c.repeat }

// Gap reports whether events are missing before those that Next returned last, because
// the log is bounded. The client has to be told (I4).
func (c *Call) Gap() bool { return c.gap }

// Close reports whether the response must end now, and after which time the client comes
// back. It must end if the server closed the stream with the last event that Next returned
// (SEP-1699), or if a listener lost its place. The client keeps its place in the stream:
// send it [Call.Cursor] with that retry last.
func (c *Call) Close() (retry time.Duration, now bool) { return c.pause, c.pause > 0 }

// Held reports whether this function executes the request itself. Keep the response open
// as long as it does; see [InlineTracker].
func (c *Call) Held() bool {
	h, ok := c.tracker.(InlineTracker)
	return ok && h.Held()
}

// Next waits for events and returns them in order. It returns none when until has passed,
// or when this function has stopped executing the request (see [InlineTracker]). An event
// that only closes the stream has no Raw.
//
// The request is accepted (I8) when Next returns without an error for the first time, with
// or without events. That may be later than until.
//
// A listener gets events only while it is the primary. If Next has none for it, Next has
// also looked at the session in the last five seconds (one read), so the Call may be Done.
//
// Errors: Unavailable if there is no durable trace or the store cannot be read. Unknown
// if in addition a box may execute the request; ctx's error. Next may be called again
// after an error.
func (c *Call) Next(ctx context.Context, until time.Time) ([]storage.Event, error) {
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
		page, halts, err := c.read(ctx, until)
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
		if !accepted && now.Sub(c.begun) >= c.manager.limits.AcceptBy {
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

// handed returns the tracker if a box may execute the request although no sign of life has
// arrived. Otherwise it returns nil.
func (c *Call) handed() Handover {
	if h, ok := c.tracker.(Handover); ok && !c.status.Accepted && h.Handed() {
		return h
	}
	return nil
}

// bear handles an error before the request was accepted. While a box may have the
// request, no error must make the client send the request again. So bear returns nil
// after a pause as long as the request may still be accepted. After that it returns
// Unknown.
func (c *Call) bear(ctx context.Context, err error) error {
	if c.handed() == nil || ctx.Err() != nil {
		return err
	}
	if time.Since(c.begun) > c.manager.limits.AcceptBy {
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
			c.once.release(ctx) // no box has it
		}
		return storage.Errorf(storage.Unavailable, "the box has not given a sign of life in %s, so the request was not accepted; send it again", c.manager.limits.AcceptBy)
	}
	if err := h.GiveUp(ctx); err != nil {
		return c.unknown(err)
	}
	c.status.Next = time.Now()
	return nil
}

func (c *Call) unknown(cause error) error {
	return storage.Errorf(storage.Unknown, "the box has not given a sign of life in %s; whether the request was executed is not known", c.manager.limits.AcceptBy).Because(cause)
}

// read waits for events until another task is due. halts is true only once: when this
// function has stopped executing the request although the request has not ended.
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
			wake = earlier(c.status.Next, c.begun.Add(c.manager.limits.AcceptBy))
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

// firstTend is a little longer than a runner waits before it reports that it has taken a
// request (AckWithin). So a call that is answered quickly costs only reads of its log.
const firstTend = 1100 * time.Millisecond

// untilClose returns the events of a page, up to the first that closes the response.
func (c *Call) untilClose(ctx context.Context, page storage.Page) ([]storage.Event, error) {
	if c.lease != nil && !c.lease.current && c.lease.from.Index == 0 {
		// A client that reports no event was not there when the server closed the stream.
		// If the old events closed its response too, it would never get past them.
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

// follower is an event stream's place as the reader of the legacy SSE stream of an
// HTTP+SSE session. Only the newest event stream has the place.
type follower struct {
	nonce string
	read  time.Time // when the session was last read
}

// Hold returns how long a response on this call should be held open. It is 0 if no events
// are stored. It is short for a listener whose last polls were empty, so that an idle
// client costs almost nothing.
func (c *Call) Hold() time.Duration {
	switch {
	case !c.Stored():
		return 0
	case c.stream == storage.Standalone && c.polls > idlePolls:
		return min(c.manager.limits.Pace, c.manager.limits.Hold)
	default:
		return c.manager.limits.Hold
	}
}

// idlePolls is the number of empty polls in a row after which a listener counts as idle.
const idlePolls = 3

// Retry returns how long the client should wait before it comes back. On a request stream it
// is 1 to 5 times the pace, because the client waits for an answer. On the standalone stream it
// grows from 2 to 60 times the pace while nothing happens. After the server has closed the
// stream it is the time that the server gave; see [Call.Close].
func (c *Call) Retry() time.Duration {
	if c.pause > 0 {
		return c.pause
	}
	pace := c.manager.limits.Pace
	if c.stream != storage.Standalone {
		return time.Duration(min(1+c.polls/10, 5)) * pace
	}
	return min(time.Duration(2<<min(c.polls, 5))*pace, c.idleRetry())
}

// idleRetry returns the longest retry that a listener gets.
func (c *Call) idleRetry() time.Duration { return 60 * c.manager.limits.Pace }

// Cursor returns the id of a cursor without an event, after the last event that Next
// returned. Every response begins with such an id, so that the client can come back. It
// differs for each response.
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

// ID returns the event id of an event of this call. On the legacy SSE stream it also names
// the session, because that client comes back with nothing but the event id.
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

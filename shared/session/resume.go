package session

import (
	"context"
	"errors"
	"strconv"
	"time"
)

// Resume takes up a stream where the client says it was cut (Last-Event-ID; MCP
// 2025-11-25, basic/transports, "Resumability and Redelivery"). The id of a
// request stream gives that stream; the id of the common stream gives what
// [Host.Listen] gives. A stream that does not exist, is another session's, or is
// too old, has no events and is Gone.
//
// Errors: Invalid (*EventIDError), NotFound (session), Unavailable.
func (h *Host) Resume(ctx context.Context, c Caller, id ID, lastEventID string) (*Call, error) {
	from, err := ParseEventID(lastEventID)
	if err != nil {
		return nil, err
	}
	if from.Stream == Common {
		return h.Listen(ctx, c, id, lastEventID)
	}
	s, _, err := h.Load(ctx, c, id)
	if err != nil {
		return nil, err
	}
	call := &Call{
		host: h, session: s.ID, stream: from.Stream, after: from.Index, begun: time.Now(), polls: pollsOf(from.Nonce) + 1,
		initialize: s.State == Created,
	}
	tail, err := h.store.Tail(ctx, s.ID, from.Stream)
	if err != nil {
		return nil, err
	}
	if tail.Final {
		call.done = from.Index >= tail.Last
		return call, nil
	}
	call.tender, err = h.backend.Attend(ctx, s, from.Stream)
	if errors.Is(err, NotFound) {
		// No trace of the request, and when the log was read it had no end. It may
		// have ended in between; if not, nobody will ever write to this stream.
		if tail, err = h.store.Tail(ctx, s.ID, from.Stream); err == nil {
			call.done = !tail.Final || from.Index >= tail.Last
		}
	}
	if err != nil {
		return nil, err
	}
	call.duty = Duty{Accepted: true, Next: call.begun.Add(attendAfter)}
	return call, nil
}

// attendAfter is how long a poll waits before it looks after the box.
const attendAfter = 10 * time.Second

// lease is a GET's claim to the common stream: one GET is the primary, the
// others hear nothing until the lease is free.
type lease struct {
	nonce string
	until time.Time // when this GET plans to close
	from  EventID   // what the client reported, zero if it reported nothing
	again time.Time // when to ask for the lease again
	held  bool
}

// Listen opens the common stream (GET). lastEventID is "" or what the client was
// given. Of several listeners one gets the events; see [Call.Next]. Closed if
// the server can never push anything, so that there is no reason to listen.
//
// Errors: Invalid, NotFound (session), Closed, Unavailable.
func (h *Host) Listen(ctx context.Context, c Caller, id ID, lastEventID string) (*Call, error) {
	var from EventID
	if lastEventID != "" {
		var err error
		if from, err = ParseEventID(lastEventID); err != nil {
			return nil, err
		}
	}
	s, _, err := h.Load(ctx, c, id)
	if err != nil {
		return nil, err
	}
	if s.State == Ready && !s.Pushes {
		return nil, Errorf(Closed, "server %q never sends anything outside a request; there is no common stream", s.Server)
	}
	call := &Call{host: h, session: s.ID, after: from.Index, begun: time.Now()}
	if lastEventID != "" {
		call.polls = pollsOf(from.Nonce) + 1
	}
	call.lease = &lease{nonce: NewNonce()[:nonceLen], until: call.begun.Add(call.Hold()), from: from}
	return call, nil
}

// takeLease makes the call the primary if the lease is free, has run out, or is
// the client's own from its last poll (its cursor carries the holder's nonce).
// The stream then starts at what the client reported or else at what any client
// ever reported. Only such reports move Delivered: what was merely sent may not
// have arrived.
func (c *Call) takeLease(ctx context.Context) error {
	l := c.lease
	if l.held || time.Now().Before(l.again) {
		return nil
	}
	s, _, err := c.host.store.Load(ctx, c.session, "")
	if err != nil {
		return err
	}
	now := time.Now()
	if s.Primary.Until.After(now) && s.Primary.Nonce != holderOf(l.from.Nonce) {
		l.again = s.Primary.Until
		return nil
	}
	if l.from.Index > s.Delivered {
		tail, err := c.host.store.Tail(ctx, c.session, Common)
		if err != nil {
			return err
		}
		s.Delivered = max(s.Delivered, min(l.from.Index, tail.Last))
	}
	s.Primary = Lease{Nonce: l.nonce, Until: l.until}
	if err := c.host.store.Save(ctx, s); err != nil {
		if errors.Is(err, Conflict) {
			l.again = now
			return nil
		}
		return err
	}
	l.held = true
	if c.after = s.Delivered; l.from.Index > 0 {
		c.after = min(l.from.Index, s.Delivered)
	}
	return nil
}

// Hold is how long a response on this call should be held open: short once the
// client has polled in vain for a while, so that an idle client costs next to
// nothing.
func (c *Call) Hold() time.Duration {
	switch {
	case !c.Stored():
		return 0
	case c.stream == Common && c.polls > idlePolls:
		return time.Second
	default:
		return c.host.limits.Hold
	}
}

// idlePolls is after how many empty polls in a row a listener counts as idle.
const idlePolls = 3

// Retry is what the client is told to wait before it comes back. For a request
// it stays small, because somebody waits; for the common stream it grows from 2
// to 60 times the pace while nothing happens.
func (c *Call) Retry() time.Duration {
	pace := c.host.limits.Pace
	if c.stream != Common {
		return time.Duration(min(1+c.polls/10, 5)) * pace
	}
	return time.Duration(min(2<<min(c.polls, 5), 60)) * pace
}

// A nonce is a random word and then, in base 36, how many empty polls came before
// it, so that nothing has to be stored to let the pace fall. On the common stream
// the word is the lease holder's, also on the ids of events: a client that was
// cut off comes back to its own lease.
const nonceLen = 10

func nonceOf(word string, polls int) string {
	return word + strconv.FormatInt(int64(min(polls, 35)), 36)
}

func holderOf(nonce string) string { return nonce[:min(len(nonce), nonceLen)] }

func pollsOf(nonce string) int {
	if len(nonce) != nonceLen+1 {
		return 0
	}
	n, err := strconv.ParseInt(nonce[nonceLen:], 36, 32)
	if err != nil {
		return 0
	}
	return int(n)
}

// Cursor is the id of a bare cursor behind the last event returned: what every
// response opens with, so that the client can come back. It is another one for
// each response.
func (c *Call) Cursor() EventID {
	word := NewNonce()[:nonceLen]
	if c.lease != nil {
		word = c.lease.nonce
	}
	return EventID{Stream: c.stream, Index: c.after, Nonce: nonceOf(word, c.polls)}
}

// ID is the event id of an event of this call.
func (c *Call) ID(e Event) EventID {
	id := EventID{Stream: c.stream, Index: e.Index}
	if c.lease != nil {
		id.Nonce = nonceOf(c.lease.nonce, 0)
	}
	return id
}

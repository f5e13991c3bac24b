package host

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Resume takes up a stream where the client says it was cut (Last-Event-ID; MCP 2025-11-25,
// basic/transports, "Resumability and Redelivery"). The id of an event of a request stream
// gives that stream. The id of an event of the common stream gives what [Streams.Listen]
// gives. The Call has no events and is Done for a stream that does not exist, belongs to
// another session, or is too old.
//
// Errors: Invalid (*EventIDError), NotFound (session), Unavailable; those of Listen.
func (h Streams) Resume(ctx context.Context, c Caller, id session.ID, lastEventID string) (*Call, error) {
	from, err := session.ParseEventID(lastEventID)
	if err != nil {
		return nil, err
	}
	if from.Stream == session.Common {
		return h.Listen(ctx, c, id, lastEventID)
	}
	s, _, err := h.Load(ctx, c, id)
	if err != nil {
		return nil, err
	}
	call := &Call{
		host: h.core, session: s.ID, stream: from.Stream, after: from.Index, begun: time.Now(), polls: pollsOf(from.Nonce) + 1,
	}
	tail, err := h.store.Tail(ctx, s.ID, from.Stream)
	if err != nil {
		return nil, err
	}
	if tail.Final {
		call.done = from.Index >= tail.Last
		return call, nil
	}
	call.tracker, err = h.backend.Track(ctx, s, from.Stream)
	if errors.Is(err, session.NotFound) {
		// There is no trace of the request, and the log had no end when it was read. The request
		// may have ended in between. If not, no function will ever write to this stream.
		if tail, err = h.store.Tail(ctx, s.ID, from.Stream); err == nil {
			call.done = !tail.Final || from.Index >= tail.Last
		}
	}
	if err != nil {
		return nil, err
	}
	call.status = Status{Accepted: true, Next: call.begun.Add(attendAfter)}
	return call, nil
}

// attendAfter is how long a poll waits before it looks after the box.
const attendAfter = 10 * time.Second

// Hold returns how long a response on this call should be held open. It is 0 if nothing is
// stored. It is short for a listener that has polled in vain several times, so that an idle
// client costs almost nothing.
func (c *Call) Hold() time.Duration {
	switch {
	case !c.Stored():
		return 0
	case c.stream == session.Common && c.polls > idlePolls:
		return min(c.host.limits.Pace, c.host.limits.Hold)
	default:
		return c.host.limits.Hold
	}
}

// idlePolls is the number of empty polls in a row after which a listener counts as idle.
const idlePolls = 3

// Retry returns how long the client should wait before it comes back. On a request stream it
// is 1 to 5 times the pace, because the client waits for an answer. On the common stream it
// grows from 2 to 60 times the pace while nothing happens. After the server has closed the
// stream it is the time that the server gave; see [Call.Close].
func (c *Call) Retry() time.Duration {
	if c.pause > 0 {
		return c.pause
	}
	pace := c.host.limits.Pace
	if c.stream != session.Common {
		return time.Duration(min(1+c.polls/10, 5)) * pace
	}
	return min(time.Duration(2<<min(c.polls, 5))*pace, c.idleRetry())
}

// idleRetry returns the longest time that a listener is told to wait.
func (c *Call) idleRetry() time.Duration { return 60 * c.host.limits.Pace }

// A nonce is a random word, followed by the number of empty polls before it in base 36. So
// the pace can fall without anything being stored. On the common stream the word is the
// lease holder's, also in the ids of events. A client that was cut off thus comes back to
// its own lease.
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

// Cursor returns the id of a bare cursor behind the last event that Next returned. Every
// response begins with one, so that the client can come back. It differs for each response.
func (c *Call) Cursor() session.EventID {
	if c.follower != nil {
		return session.EventID{Stream: session.LegacySSE, Index: c.after, Nonce: string(c.session)}
	}
	word := session.NewNonce()[:nonceLen]
	if c.lease != nil {
		word = c.lease.nonce
	}
	return session.EventID{Stream: c.stream, Index: c.after, Nonce: nonceOf(word, c.polls)}
}

// ID returns the event id of an event of this call. On the legacy SSE stream it also names
// the session, because its client comes back with nothing else.
func (c *Call) ID(e session.Event) session.EventID {
	id := session.EventID{Stream: c.stream, Index: e.Index}
	switch {
	case c.lease != nil:
		id.Nonce = nonceOf(c.lease.nonce, 0)
	case c.follower != nil:
		id.Nonce = string(c.session)
	}
	return id
}

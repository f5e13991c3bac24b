package sessions

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// resume continues the stream of a request after an event (MCP 2025-11-25, basic/transports,
// "Resumability and Redelivery"). The Call has no events and is Done for a stream that does not exist,
// belongs to another session, or is too old.
//
// Errors: Unavailable.
func (u *use) resume(ctx context.Context, from storage.EventID) (*Call, error) {
	h := u.manager
	call := &Call{
		manager: h, session: u.session.ID, stream: from.Stream, after: from.Index, begun: time.Now(), polls: pollsOf(from.Nonce) + 1,
	}
	tail, after, err := u.place(ctx, from)
	if err != nil {
		return nil, err
	}
	call.after = after
	if tail.Final {
		call.done = after >= tail.Last
		return call, nil
	}
	call.tracker, err = h.backend.Track(ctx, u.session, from.Stream)
	if errors.Is(err, storage.NotFound) {
		// The store has no storage.Item of the request, and its stream had no end when its tail was read.
		// The request ended between the two reads, or no instance will ever write to this stream.
		if tail, err = h.store.Tail(ctx, u.session.ID, from.Stream); err == nil {
			call.done = !tail.Final || from.Index >= tail.Last
		}
	}
	if err != nil {
		return nil, err
	}
	call.status = Status{Accepted: true, Next: call.begun.Add(attendAfter)}
	return call, nil
}

// place returns the tail of a stream, and the index after which the client gets events. The argument
// from is the event id with which the client comes back.
//
// The log may have lost events that the client has: the store was restored from a backup, or the power
// failed. If the log is shorter than the client's position, place ends the request, if it is still open.
// The client then gets the end of the request, even if it has had a lost event with the same index.
//
// Errors: Unavailable.
func (u *use) place(ctx context.Context, from storage.EventID) (tail storage.Tail, after storage.Index, err error) {
	store, id := u.manager.store, u.session.ID
	tail, err = store.Tail(ctx, id, from.Stream)
	if err != nil || from.Index < tail.Last || from.Index == tail.Last && !tail.Final || tail.Last == 0 { // tail.Last is 0 if all events of the call have expired
		return tail, from.Index, err
	}
	lost := from.Index > tail.Last
	switch {
	case from.Stream == storage.Standalone:
		return tail, tail.Last, nil
	case lost && !tail.Final:
		it, err := store.Item(ctx, u.session.Box(), from.Stream)
		if err != nil || it.Address.Session != id {
			return tail, tail.Last, storage.IgnoreNotFound(err)
		}
		if err := u.manager.out.Fail(ctx, it.Address, forgotten(), time.Now().Add(u.manager.limits.EventAge)); err != nil {
			return tail, 0, err
		}
		if tail, err = store.Tail(ctx, id, from.Stream); err != nil {
			return tail, 0, err
		}
	case !lost && tail.Final:
		page, err := store.Read(ctx, id, from.Stream, tail.Last-1, 1)
		if err != nil {
			return tail, 0, err
		}
		lost = len(page.Events) > 0 && string(wire.Lookup(page.Events[0].Raw, "error", "code")) == strconv.Itoa(int(wire.CodeOutcomeUnknown))
	}
	if lost && tail.Final {
		return tail, tail.Last - 1, nil
	}
	return tail, min(from.Index, tail.Last), nil
}

// forgotten is the error of a request whose events the store has lost.
func forgotten() *wire.Error {
	const phase = "runtime"
	return &wire.Error{
		Code:    wire.CodeOutcomeUnknown,
		Message: phase + ": the store has lost what the call has said, as after a restore of a backup; whether the call was executed is not known. Look, and call again",
		Data:    map[string]any{"phase": phase},
	}
}

// attendAfter is how long a resumed Call waits for events before it first calls [Tracker.Check].
const attendAfter = 10 * time.Second

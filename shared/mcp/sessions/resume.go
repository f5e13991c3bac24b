package sessions

import (
	"context"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Resume continues a stream after the event with the id lastEventID (MCP 2025-11-25,
// basic/transports, "Resumability and Redelivery"). If that is an event of the standalone stream,
// Resume is [Manager.Listen]. The Call has no events and is Done for a stream that does not exist,
// belongs to another session, or is too old.
//
// Errors: Invalid (*EventIDError), NotFound (session), Unavailable; those of Listen.
func (h *Manager) Resume(ctx context.Context, c Caller, id storage.ID, lastEventID string) (*Call, error) {
	from, err := storage.ParseEventID(lastEventID)
	if err != nil {
		return nil, err
	}
	if from.Stream == storage.Standalone {
		return h.Listen(ctx, c, id, lastEventID)
	}
	u, err := h.use(ctx, c, id)
	if err != nil {
		return nil, err
	}
	call := &Call{
		manager: h, session: u.session.ID, stream: from.Stream, after: from.Index, begun: time.Now(), polls: pollsOf(from.Nonce) + 1,
	}
	tail, err := h.store.Tail(ctx, u.session.ID, from.Stream)
	if err != nil {
		return nil, err
	}
	if tail.Final {
		call.done = from.Index >= tail.Last
		return call, nil
	}
	call.tracker, err = h.backend.Track(ctx, u.session, from.Stream)
	if errors.Is(err, storage.NotFound) {
		// The store has no item of the request, and its stream had no end when its tail was read. The
		// request may have ended between the two reads. If not, no instance will ever write to this stream.
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

// attendAfter is how long a resumed Call waits for events before it first calls [Tracker.Check].
const attendAfter = 10 * time.Second

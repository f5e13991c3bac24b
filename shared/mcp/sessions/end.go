package sessions

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// End ends a session (DELETE). The box stops its process at once if the message reaches
// it, and otherwise once the process has been idle long enough. Errors: NotFound,
// Unavailable.
func (h *Manager) End(ctx context.Context, c Caller, id storage.ID) error {
	s, box, err := h.Load(ctx, c, id)
	if err != nil {
		return err
	}
	if s, err = h.update(ctx, s, ending(storage.QuitClient)); err != nil {
		return err
	}
	// Ignore an error: the session has ended even if the box does not learn of it now.
	_ = h.backend.End(ctx, s, box)
	return nil
}

// Terminate ends a session without its client: for an operator, or because its server was
// removed from the servers file. If it is the session of a group, Terminate also ends the
// sessions that it has with members. Terminate does nothing if the session has ended
// already. The box stops its process at once if the message reaches it, and otherwise
// once the process has been idle long enough.
//
// Errors: NotFound (there is no such session, or it has expired), Unavailable.
func (h *Manager) Terminate(ctx context.Context, id storage.ID) error {
	s, _, err := h.store.Load(ctx, id, "")
	if err != nil || s.State == storage.Ended {
		return err
	}
	box, err := h.store.Box(ctx, s.Box())
	if err != nil {
		return err
	}
	if s, err = h.update(ctx, s, ending(storage.QuitService)); err != nil {
		return err
	}
	// Ignore an error: the session has ended even if the box does not learn of it now.
	_ = h.backend.End(ctx, s, box)
	for _, member := range s.Members {
		if err := unlessGone(h.Terminate(ctx, MemberID(id, member))); err != nil {
			return err
		}
	}
	return nil
}

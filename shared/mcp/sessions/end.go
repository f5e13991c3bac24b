package sessions

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// End ends a session (DELETE), and sends its box a message. The box stops the session's
// process when it gets the message, or else once the process has been idle long enough.
// Errors: NotFound, Unavailable.
func (h *Manager) End(ctx context.Context, c Caller, id storage.ID) error {
	u, err := h.use(ctx, c, id)
	if err != nil {
		return err
	}
	if err := u.update(ctx, ending(storage.QuitClient)); err != nil {
		return err
	}
	_ = h.backend.End(ctx, u.session, u.box) // after an error the box finds out later that the session has ended
	return nil
}

// Terminate ends a session without its client: for an operator, or because its server was removed
// from the servers file. For a session with a group, Terminate also ends the sessions with members
// behind it. Terminate does nothing if the session has ended already. The box stops the process as
// after [Manager.End].
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
	if s, err = update(ctx, h.store, s, ending(storage.QuitService)); err != nil {
		return err
	}
	_ = h.backend.End(ctx, s, box) // after an error the box finds out later that the session has ended
	for _, member := range s.Members {
		if err := storage.IgnoreNotFound(h.Terminate(ctx, MemberID(id, member))); err != nil {
			return err
		}
	}
	return nil
}

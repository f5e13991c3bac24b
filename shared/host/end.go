package host

import (
	"context"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// End ends a session (DELETE). The box stops its process at once if it can be told now, and
// otherwise when the process has been idle. Errors: NotFound, Unavailable.
func (h *Host) End(ctx context.Context, c Caller, id session.ID) error {
	s, box, err := h.Load(ctx, c, id)
	if err != nil {
		return err
	}
	if s, err = quit(ctx, h.store, s, session.QuitClient); err != nil {
		return err
	}
	// It has ended, whether the box hears of it now or not.
	_ = h.backend.End(ctx, s, box)
	return nil
}

// tombstoneLife is how long an ended session stays, so that operators can see its reason.
const tombstoneLife = time.Hour

func quit(ctx context.Context, store session.Sessions, s session.Session, why session.Quit) (session.Session, error) {
	return update(ctx, store, s, func(s *session.Session) bool {
		if s.State == session.Ended {
			return false
		}
		s.State, s.Quit, s.Expires = session.Ended, why, time.Now().Add(tombstoneLife)
		return true
	})
}

// Terminate ends a session without its client: for an operator, or because its server was
// removed from the servers file. It does nothing if the session has ended already. The box
// stops its process at once if it can be told now, and otherwise when it has been idle.
//
// Errors: NotFound (there is no such session, or it has expired), Unavailable.
func (h *Host) Terminate(ctx context.Context, id session.ID) error {
	s, _, err := h.store.Load(ctx, id, "")
	if err != nil || s.State == session.Ended {
		return err
	}
	box, err := h.store.Box(ctx, session.BoxFor(s.Tenant, s.Server))
	if err != nil {
		return err
	}
	if s, err = quit(ctx, h.store, s, session.QuitService); err != nil {
		return err
	}
	// It has ended, whether the box hears of it now or not.
	_ = h.backend.End(ctx, s, box)
	return nil
}

package host

import (
	"context"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// End ends a session (DELETE). NotFound if it is not there any more. Its process
// is stopped if the box can be told now, and else when it has been idle.
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

// tombstoneLife keeps the reason a session ended for an operator to see.
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

// Terminate ends a session without its client: an operator does, or its server was
// taken out of the servers file. One that has ended already is left as it is. Its
// process is stopped if the box can be told now, and else when it has been idle.
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

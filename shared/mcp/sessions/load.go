package sessions

import (
	"context"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Load returns a session that its caller may use, and its box. It returns NotFound if the
// session is not there, has ended or expired, or belongs to another caller. Clients cannot
// tell these apart. Errors: NotFound, Unavailable.
func (h *Manager) Load(ctx context.Context, c Caller, id storage.ID) (storage.Session, storage.Box, error) {
	s, box, err := h.store.Load(ctx, id, c.box(id))
	if err != nil && !errors.Is(err, storage.NotFound) {
		return storage.Session{}, storage.Box{}, err
	}
	mine := s.Server == c.Server.Name && s.Tenant == c.Tenant && s.Principal == c.Principal && s.Transport == c.Transport
	if err != nil || !mine || s.State == storage.Ended {
		return storage.Session{}, storage.Box{}, storage.Errorf(storage.NotFound, "there is no such session; send initialize to open one").Because(absence(s, err))
	}
	return s, box, nil
}

// touch extends the life of a session, and of the session with a group behind which it is. It
// writes only when less than half of the session's life is left.
func (h *Manager) touch(ctx context.Context, s storage.Session) error {
	if s.State != storage.Ready || time.Until(s.Expires) > h.limits.Life/2 {
		return nil
	}
	_, err := h.update(ctx, s, func(s *storage.Session) bool { h.extend(s); return true })
	if err != nil || s.Group == "" {
		return err
	}
	group, _, err := h.store.Load(ctx, s.Group, "")
	if err != nil {
		return storage.IgnoreNotFound(err)
	}
	return h.touch(ctx, group)
}

func (h *Manager) extend(s *storage.Session) {
	s.Used = time.Now()
	if s.State == storage.Ready {
		s.Expires = s.Used.Add(h.limits.Life)
	}
}

func (h *Manager) update(ctx context.Context, s storage.Session, change func(*storage.Session) bool) (storage.Session, error) {
	return update(ctx, h.store, s, change)
}

// absence returns why a caller cannot see a session. Only operators may see the reason. It
// is the store's error, the [storage.Quit] of a session that has ended, or an error that
// says that the session belongs to another caller.
func absence(s storage.Session, err error) error {
	switch {
	case err != nil:
		return err
	case s.State == storage.Ended:
		return s.Quit
	default:
		return errors.New("the session is not the caller's: it was opened by another principal, for another server or over another transport")
	}
}

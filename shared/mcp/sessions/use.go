package sessions

import (
	"context"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// use is one use of a session by its caller, for one call of a method of [Manager]. session and box
// are the records as that call has last read or written them. box is zero if the call sends nothing
// to a box. One goroutine at a time may change a use.
type use struct {
	manager *Manager
	caller  Caller
	session storage.Session
	box     storage.Box
}

// use reads a session that the caller may use, and its box. Errors: those of Load.
func (h *Manager) use(ctx context.Context, c Caller, id storage.ID) (*use, error) {
	s, box, err := h.store.Load(ctx, id, c.box(id))
	if err != nil && !errors.Is(err, storage.NotFound) {
		return nil, err
	}
	mine := s.Server == c.Server.Name && s.Tenant == c.Tenant && s.Principal == c.Principal && s.Transport == c.Transport
	if err != nil || !mine || s.State == storage.Ended {
		return nil, storage.Errorf(storage.NotFound, "there is no such session; send initialize to open one").Because(absence(s, err))
	}
	return &use{h, c, s, box}, nil
}

// Load returns a session that its caller may use, and its box. It returns NotFound if the
// session is not there, has ended or expired, or belongs to another caller. Clients cannot
// tell these apart. Errors: NotFound, Unavailable.
func (h *Manager) Load(ctx context.Context, c Caller, id storage.ID) (storage.Session, storage.Box, error) {
	u, err := h.use(ctx, c, id)
	if err != nil {
		return storage.Session{}, storage.Box{}, err
	}
	return u.session, u.box, nil
}

func (u *use) update(ctx context.Context, change func(*storage.Session) bool) (err error) {
	u.session, err = update(ctx, u.manager.store, u.session, change)
	return err
}

// touch extends the life of a session. If it is a session with a member of a group, touch also
// extends the client's session with the group. It writes only when less than half of the session's
// life is left.
func (u *use) touch(ctx context.Context) error {
	limits := u.manager.limits
	if u.session.State != storage.Ready || time.Until(u.session.Expires) > limits.Life/2 {
		return nil
	}
	err := u.update(ctx, func(s *storage.Session) bool { limits.extend(s); return true })
	if err != nil || u.session.Group == "" {
		return err
	}
	group, _, err := u.manager.store.Load(ctx, u.session.Group, "")
	if err != nil {
		return storage.IgnoreNotFound(err)
	}
	of := &use{manager: u.manager, session: group}
	return of.touch(ctx)
}

// extend records that a session is used now. A session that is Ready lives for Life from now on.
func (l Limits) extend(s *storage.Session) {
	s.Used = time.Now()
	if s.State == storage.Ready {
		s.Expires = s.Used.Add(l.Life)
	}
}

// absence returns why a caller cannot see a session. Only operators may see the reason. The result is
// the store's error, the [storage.Quit] of an ended session, or an error for a session of another
// caller.
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

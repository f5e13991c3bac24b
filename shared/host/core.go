package host

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Load returns a session that its caller may use, and its box. It returns NotFound if the
// session is not there, has ended or expired, or belongs to another caller. Clients cannot
// tell these apart. Errors: NotFound, Unavailable.
func (h *core) Load(ctx context.Context, c Caller, id session.ID) (session.Session, session.Box, error) {
	s, box, err := h.store.Load(ctx, id, c.box())
	if err != nil && !errors.Is(err, session.NotFound) {
		return session.Session{}, session.Box{}, err
	}
	mine := s.Server == c.Server.Name && s.Tenant == c.Tenant && s.Principal == c.Principal && s.Transport == c.Transport
	if err != nil || !mine || s.State == session.Ended {
		return session.Session{}, session.Box{}, session.Errorf(session.NotFound, "there is no such session; send initialize to open one").Because(absence(s, err))
	}
	return s, box, nil
}

// touch extends the life of a session. It writes only when less than half of it is left.
func (h *core) touch(ctx context.Context, s session.Session) error {
	if s.State != session.Ready || time.Until(s.Expires) > h.limits.Life/2 {
		return nil
	}
	_, err := h.update(ctx, s, func(s *session.Session) bool { h.extend(s); return true })
	return err
}

func (h *core) extend(s *session.Session) {
	s.Used = time.Now()
	if s.State == session.Ready {
		s.Expires = s.Used.Add(h.limits.Life)
	}
}

// update is a compare-and-swap loop on a session record. change returns false to
// leave the record as it is.
func (h *core) update(ctx context.Context, s session.Session, change func(*session.Session) bool) (session.Session, error) {
	return update(ctx, h.store, s, change)
}

func update(ctx context.Context, store session.Sessions, s session.Session, change func(*session.Session) bool) (session.Session, error) {
	for begun, pause := time.Now(), time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		if !change(&s) {
			return s, nil
		}
		err := store.Save(ctx, s)
		if err == nil {
			s.Rev++
			return s, nil
		}
		if !errors.Is(err, session.Conflict) {
			return s, err
		}
		if time.Since(begun) > contended {
			return s, session.Errorf(session.Unavailable, "the session is being changed by too many requests at once; try again")
		}
		if err := sleepUntil(ctx, time.Now().Add(rand.N(pause))); err != nil {
			return s, err
		}
		if s, _, err = store.Load(ctx, s.ID, session.BoxFor(s.Tenant, s.Server)); err != nil {
			return s, err
		}
	}
}

// contended is how long update tries while other writers come between. Each conflict means
// that one of them got through, so it takes many of them to use this up.
const contended = 10 * time.Second

// absence returns why a session is not there for its caller. Only operators may see it. It is
// the store's error, the [session.Quit] of a session that has ended, or an error that says
// that the session is another caller's.
func absence(s session.Session, err error) error {
	switch {
	case err != nil:
		return err
	case s.State == session.Ended:
		return s.Quit
	default:
		return errors.New("the session is not the caller's: it was opened by another principal, for another server or over another transport")
	}
}

package sessions

import (
	"context"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// maxPrincipal bounds the name of a principal, in bytes.
const maxPrincipal = 256

// Give hands a session over to another principal of its tenant, for an operator: from now on only
// callers with that principal can use it. The session keeps its workspace and its log. For a
// session with a group, Give also hands over the sessions with members behind it. Open responses
// are not cut. Give returns all sessions that it has handed over. The caller must stop their
// processes, which may have secrets of the earlier principal.
//
// Errors: NotFound (there is no such session, or it has ended), Invalid, Unavailable.
func (h *Manager) Give(ctx context.Context, id storage.ID, principal string) (given []storage.Session, err error) {
	if bad := func(c rune) bool { return c < ' ' || c == 0x7f }; principal == "" || len(principal) > maxPrincipal || slices.ContainsFunc([]rune(principal), bad) {
		return nil, storage.Errorf(storage.Invalid, "the name of the principal is empty, too long, or has control characters")
	}
	s, _, err := h.store.Load(ctx, id, "")
	switch {
	case err != nil:
		return nil, err
	case s.State == storage.Ended:
		return nil, storage.Errorf(storage.NotFound, "the session has ended")
	case s.Transport == storage.Modern:
		return nil, storage.Errorf(storage.Invalid, "clients of 2026-07-28 have no session that could be given: each principal has one of its own for each server")
	}
	if s, err = update(ctx, h.store, s, func(s *storage.Session) bool {
		if s.Principal == principal {
			return false
		}
		s.Principal, s.Props = principal, nil
		return true
	}); err != nil {
		return nil, err
	}
	given = append(given, s)
	for _, member := range s.Members {
		more, err := h.Give(ctx, MemberID(id, member), principal)
		if err = storage.IgnoreNotFound(err); err != nil {
			return given, err
		}
		given = append(given, more...)
	}
	return given, nil
}

package sessions_test

import (
	"errors"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// Logs tell why a session is not there. Clients are told the same of each.
func TestTheEndOfASessionHasACause(t *testing.T) {
	h, store, id := listening(t)
	ended := func(q storage.Quit) storage.ID {
		return withState(t, store, func(s *storage.Session) { s.State, s.Quit = storage.Ended, q })
	}
	other := someone
	other.Principal = "q"
	for name, c := range map[string]struct {
		caller sessions.Caller
		id     storage.ID
		why    error
	}{
		"there is none":            {someone, storage.NewID(), storage.NotFound},
		"ended by its client":      {someone, ended(storage.QuitClient), storage.QuitClient},
		"ended by an operator":     {someone, ended(storage.QuitService), storage.QuitService},
		"initialize failed":        {someone, ended(storage.QuitNoInit), storage.QuitNoInit},
		"initialize was cancelled": {someone, ended(storage.QuitCanceled), storage.QuitCanceled},
		"expired":                  {someone, withState(t, store, func(s *storage.Session) { s.Expires = time.Now().Add(-time.Second) }), storage.QuitExpired},
		"somebody else's":          {other, id, storage.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.Resume(t.Context(), c.caller, c.id, "1")
			var told *storage.Error
			if !errors.Is(err, storage.NotFound) || !errors.Is(err, c.why) || !errors.As(err, &told) || told.Message != "there is no such session; send initialize to open one" {
				t.Errorf("%v, want it because of %v", err, c.why)
			}
		})
	}
}

// withState stores another session, after f has changed its fields.
func withState(t *testing.T, store storage.Store, f func(*storage.Session)) storage.ID {
	t.Helper()
	now := time.Now()
	s := storage.Session{
		ID: storage.NewID(), Server: "s", Tenant: "t", Principal: "p", Transport: storage.HTTP, State: storage.Ready,
		Pushes: true, Created: now, Used: now, Expires: now.Add(time.Hour),
	}
	f(&s)
	commontest.OK(t, store.Create(t.Context(), s))
	return s.ID
}

func TestAnOperatorEndsASession(t *testing.T) {
	h, store, id := listening(t)
	for range 2 {
		commontest.OK(t, h.Terminate(t.Context(), id))
	}
	if s := record(t, store, id); s.State != storage.Ended || s.Quit != storage.QuitService {
		t.Errorf("state %q, quit %q", s.State, s.Quit)
	}
	commontest.EqualIn(t, "a session that is not there", storage.NotFound, storage.CodeOf(h.Terminate(t.Context(), storage.NewID())))
}

package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// update is a compare-and-swap loop on the record of a session. change returns false to leave the
// record as it is. update may call change several times, each time with the newest record.
//
// Errors: NotFound, Unavailable.
func update(ctx context.Context, store storage.Sessions, s storage.Session, change func(*storage.Session) bool) (storage.Session, error) {
	for begun, pause := time.Now(), time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		if !change(&s) {
			return s, nil
		}
		err := store.Save(ctx, s)
		if err == nil {
			s.Rev++
			return s, nil
		}
		if !errors.Is(err, storage.Conflict) {
			return s, err
		}
		if time.Since(begun) > contended {
			return s, storage.Errorf(storage.Unavailable, "the session is being changed by too many requests at once; try again")
		}
		if err := storage.Rest(ctx, rand.N(pause)); err != nil {
			return s, err
		}
		if s, _, err = store.Load(ctx, s.ID, s.Box()); err != nil {
			return s, err
		}
	}
}

// amend is update for the session with this id, which it reads first.
func amend(ctx context.Context, store storage.Sessions, id storage.ID, change func(*storage.Session) bool) (storage.Session, error) {
	s, _, err := store.Load(ctx, id, "")
	if err != nil {
		return storage.Session{}, err
	}
	return update(ctx, store, s, change)
}

// contended is how long update tries again after conflicts.
const contended = 10 * time.Second

// tombstoneLife is how long the record of an ended session is kept, so that operators can see why
// the session ended.
const tombstoneLife = time.Hour

// ending returns the function that ends a session in its record, for [update].
func ending(why storage.Quit) func(*storage.Session) bool {
	return func(s *storage.Session) bool {
		if s.State == storage.Ended {
			return false
		}
		s.State, s.Quit, s.Expires = storage.Ended, why, time.Now().Add(tombstoneLife)
		return true
	}
}

// adopt sets the fields of s that depend on the server's answer to initialize.
func adopt(s *storage.Session, result json.RawMessage) {
	if v, ok := wire.String(wire.Lookup(result, "protocolVersion")); ok {
		s.Version = v
	}
	s.Pushes = pushes(result) || wire.Lookup(s.Init, "capabilities", "roots") != nil || agree(s.Init, result)
}

// agree reports whether client and server declare the same extension. A server may send
// notifications of an agreed extension outside of requests.
func agree(init, result json.RawMessage) bool {
	for name := range wire.Members(wire.Lookup(init, "capabilities", "extensions")) {
		if wire.Lookup(result, "capabilities", "extensions", name) != nil {
			return true
		}
	}
	return false
}

// pushes reports whether a server's capabilities let it send messages outside of requests.
func pushes(result json.RawMessage) bool {
	caps := func(path ...string) bool {
		v := wire.Lookup(result, append([]string{"capabilities"}, path...)...)
		return v != nil && string(v) != "false" && string(v) != "null"
	}
	return caps("logging") || caps("tools", "listChanged") || caps("prompts", "listChanged") ||
		caps("resources", "listChanged") || caps("resources", "subscribe")
}

package sessions

import (
	"context"
	"strconv"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// note updates the records of the session and the server by what the events of a batch say:
//
//   - the answer to an initialize ([storage.Address.Init]) is copied into the session, or ends the
//     session if it is an error;
//   - a list ([storage.Address.List]) is stored in the handshake record;
//   - if the server announces that lists have changed, the lists in the record become invalid.
//
// note is called before the batch is written to the log, and writes what must be there when the client
// gets the batch. after, if not nil, must be called when the batch is in the log.
func note(ctx context.Context, store storage.Store, a storage.Address, b storage.Batch) (after func(context.Context) error, err error) {
	if b.Stream == storage.Standalone {
		return nil, forgetLists(ctx, store, a, b)
	}
	if !b.Final || b.Stream != a.Stream {
		return nil, nil
	}
	last := b.Events[len(b.Events)-1]
	switch result := wire.Lookup(last, "result"); {
	case a.Init && result != nil:
		if a.Shown != nil {
			result = offered(a.Shown.Pin, result)
		}
		return nil, keepHandshake(ctx, store, a.Session, result)
	case a.Init:
		return func(ctx context.Context) error {
			quit := storage.QuitNoInit
			if string(wire.Lookup(last, "error", "code")) == strconv.Itoa(int(wire.CodeCancelled)) {
				quit = storage.QuitCanceled
			}
			_, err := amend(ctx, store, a.Session, ending(quit))
			return storage.IgnoreNotFound(err)
		}, nil
	case a.List != "":
		return func(ctx context.Context) error { return noteList(ctx, store, a, b) }, nil
	}
	return nil, nil
}

// keepHandshake copies what a server's answer to initialize says into the session's record, if the
// session is Created or Ready.
func keepHandshake(ctx context.Context, store storage.Store, id storage.ID, result []byte) error {
	_, err := amend(ctx, store, id, func(s *storage.Session) bool {
		if s.State != storage.Created && s.State != storage.Ready {
			return false
		}
		version, pushes := s.Version, s.Pushes
		adopt(s, result)
		return s.Version != version || s.Pushes != pushes
	})
	return storage.IgnoreNotFound(err)
}

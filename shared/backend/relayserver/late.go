package relayserver

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// returned puts a message that its runner gives back unexecuted into the inbox, unless the request
// has an item by now. If the log then has the end of the request, returned deletes the new item.
func (r runner) returned(ctx context.Context, f frame.Return) error {
	t, err := r.open(ctx, f.Ticket)
	if err != nil {
		return err
	}
	if t.Gen != f.Gen || len(t.Requests) == 0 || len(f.Payload) == 0 || len(f.Payload) > frame.MaxMessage {
		return storage.Errorf(storage.Invalid, "a message of session %s with %d bytes was returned with a ticket that is not its own", t.Session, len(f.Payload))
	}
	notAfter := time.UnixMilli(f.NotAfter)
	if latest := time.Now().Add(validity); notAfter.After(latest) {
		notAfter = latest
	}
	it := storage.Item{
		Box: t.Box, ID: t.Stream, State: storage.Waiting, Address: t.Address, Raw: bytes.Clone(f.Payload), NotAfter: notAfter, Created: time.Now(),
	}
	put, err := r.h.Store.PutItem(ctx, it)
	if err != nil || !put {
		return err
	}
	tail, err := r.h.Store.Tail(ctx, t.Session, t.Stream)
	if err != nil || !tail.Final {
		return err
	}
	return r.h.Store.DeleteItem(ctx, it.Box, it.ID, 0)
}

// ask decides whether a runner may execute the message of a late deliver frame. Such a frame was held
// up by the runner or the network, and the client may have got an error meanwhile. ask writes an item
// for the runner's generation, unless the request has one. Then it reads the item, the record and the
// log: an instance that ends the request has taken the item for generation 0, or has written the end.
// A runner may ask again.
func (r runner) ask(ctx context.Context, f frame.Ask) (frame.Frame, error) {
	t, err := r.open(ctx, f.Ticket)
	if err != nil {
		return nil, err
	}
	if t.Gen != f.Gen || t.Stream != f.ID || len(t.Requests) == 0 {
		return nil, storage.Errorf(storage.Invalid, "a ticket of session %s is not that of the deliver it came with", t.Session)
	}
	no := frame.May{ID: f.ID, Round: f.Round, Refused: storage.Closed}
	if !f.Inbox && time.Now().UnixMilli() > f.NotAfter {
		return no, nil
	}
	it := storage.Item{Box: t.Box, ID: t.Stream, State: storage.Taken, Gen: t.Gen, Address: t.Address, Created: time.Now()}
	if f.Round == 0 {
		if _, err := r.h.Store.PutItem(ctx, it); err != nil {
			return nil, err
		}
	}
	switch it, err = r.h.Store.Item(ctx, t.Box, t.Stream); {
	case errors.Is(err, storage.NotFound):
		return no, nil
	case err != nil:
		return nil, err
	case it.State != storage.Taken || it.Gen != t.Gen || it.Round != f.Round:
		return no, nil
	}
	b, err := r.h.Store.Box(ctx, t.Box)
	if err != nil {
		return nil, err
	}
	tail, err := r.h.Store.Tail(ctx, t.Session, t.Stream)
	if err != nil {
		return nil, err
	}
	if tail.Final {
		return no, r.h.endedItem(ctx, it)
	}
	if b.Over(t.Gen) {
		return no, nil // the sweep or a waiting instance will end the request
	}
	return frame.May{ID: f.ID, Round: f.Round}, nil
}

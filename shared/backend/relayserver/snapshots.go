package relayserver

import (
	"context"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// snapshot answers a runner's request about the snapshots of its box. The request must have the
// random id of the runner in the box record, so that a runner that was replaced gets no URL.
func (r runner) snapshot(ctx context.Context, f frame.Snapshot) (frame.Frame, error) {
	reply := frame.Kept{N: f.N}
	if r.h.Snapshots == nil || f.Owner == "" || f.Box == "" {
		reply.Refused = storage.Invalid
		return reply, nil
	}
	b, err := r.h.Store.Box(ctx, f.Box)
	if err != nil {
		return nil, err
	}
	if b.Runner == "" || b.Runner != f.Runner || f.Gen > b.Gen {
		reply.Refused = storage.Fenced
		return reply, nil
	}
	r.account.proven = true
	var saved time.Time
	switch f.Op {
	case frame.Get:
		if reply.URL, reply.Sum, saved, err = r.h.Snapshots.Newest(ctx, b.ID, f.Owner); err == nil {
			reply.Saved = saved.UnixMilli()
		}
	case frame.Put:
		reply.Object, reply.URL, reply.Header, err = r.h.Snapshots.Room(ctx, b.ID, f.Owner, b.Gen, f.Size, f.Sum)
	case frame.Done:
		if err = r.h.Snapshots.Commit(ctx, b.ID, f.Owner, b.Gen, f.Object); err == nil && strings.HasPrefix(f.Owner, frame.InstallOwner) {
			err = r.installed(ctx, f)
		}
	default: // frame.Forget
		if err = r.h.Snapshots.Forget(ctx, b.ID, f.Owner, b.Gen); err == nil {
			err = r.h.Store.DeleteItem(ctx, b.ID, leftover(storage.ID(f.Owner)), 0)
		}
	}
	switch code := storage.CodeOf(err); code {
	case "":
	case storage.NotFound, storage.Fenced, storage.TooLarge, storage.Invalid:
		reply = frame.Kept{N: f.N, Refused: code}
	default:
		return nil, err // the runner asks again
	}
	return reply, nil
}

// installed writes into the box's record that a snapshot has the installed packages of its server.
func (r runner) installed(ctx context.Context, f frame.Snapshot) error {
	if r.h.Definition == nil {
		return nil
	}
	_, _, err := r.change(ctx, func(b storage.Box) (storage.Box, decision) {
		definition := r.h.Definition(b.Server)
		if b.Runner != f.Runner || b.Installed == definition {
			return b, known
		}
		b.Installed = definition
		return b, write
	})
	return err
}

// leftover returns the id of an item for a session that has ended and whose snapshot must be
// removed.
func leftover(s storage.ID) storage.StreamID { return storage.StreamID("over-" + s) }

// leave removes the snapshot of a session that has ended, or writes a leftover item for
// settleLeftover. It removes no snapshot of a box that is awake, because the box may save once
// more.
func (x *boxes) leave(ctx context.Context, s storage.Session, b storage.Box) error {
	if x.Kept == nil || !x.Kept(s.Server) {
		return nil
	}
	if b.State == storage.Asleep && x.Forget != nil {
		err := x.Forget(ctx, b.ID, string(s.ID), b.Gen)
		if err == nil {
			return nil
		}
		x.Log.WarnContext(ctx, "the snapshot of an ended session was not removed; the sweep will try again", "session_id", s.ID, "error", err)
	}
	_, err := x.Store.PutItem(ctx, storage.Item{
		Box: b.ID, ID: leftover(s.ID), State: storage.Leftover, Address: storage.Address{Session: s.ID, Box: b.ID}, Created: time.Now(),
	})
	return err
}

// settleLeftover removes the snapshot of a session that has ended, if the box is asleep. If the
// box is awake, settleLeftover tells the runner again that the session is over, and the runner
// asks for the removal itself.
func (x *boxes) settleLeftover(ctx context.Context, b storage.Box, it storage.Item) error {
	switch b.State {
	case storage.Awake:
		return except(storage.Closed, x.post(ctx, b.Conn, frame.Stop{Session: it.Address.Session}))
	case storage.Starting:
		return nil
	case storage.Asleep:
	}
	if x.Forget == nil {
		return nil
	}
	if err := x.Forget(ctx, b.ID, string(it.Address.Session), b.Gen); err != nil {
		return err
	}
	return x.Store.DeleteItem(ctx, b.ID, it.ID, 0)
}

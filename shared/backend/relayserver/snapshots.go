package relayserver

import (
	"context"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// This file is about snapshots of workspaces. A runner asks for URLs, and the host gives
// it URLs for the snapshots of its own box only. The functions here also remove the
// snapshot of a session that has ended.

// snapshot answers a runner's request about the snapshots of its box. The random id in the
// box record proves that the request comes from the runner. That id changes when another
// runner is started. A runner that was replaced gets no URL and moves no pointer.
func (h *Handler) snapshot(ctx context.Context, f frame.Snapshot) (frame.Frame, error) {
	reply := frame.Kept{N: f.N}
	if h.Snapshots == nil || f.Owner == "" || f.Box == "" {
		reply.Refused = storage.Invalid
		return reply, nil
	}
	b, err := h.Store.Box(ctx, f.Box)
	if err != nil {
		return nil, err
	}
	if b.Runner == "" || b.Runner != f.Runner || f.Gen > b.Gen {
		reply.Refused = storage.Fenced
		return reply, nil
	}
	proven(ctx)
	var saved time.Time
	switch f.Op {
	case frame.Get:
		if reply.URL, reply.Sum, saved, err = h.Snapshots.Newest(ctx, b.ID, f.Owner); err == nil {
			reply.Saved = saved.UnixMilli()
		}
	case frame.Put:
		reply.Object, reply.URL, reply.Header, err = h.Snapshots.Room(ctx, b.ID, f.Owner, b.Gen, f.Size, f.Sum)
	case frame.Done:
		if err = h.Snapshots.Commit(ctx, b.ID, f.Owner, b.Gen, f.Object); err == nil && strings.HasPrefix(f.Owner, frame.InstallOwner) {
			err = h.installed(ctx, f)
		}
	default: // Forget
		if err = h.Snapshots.Forget(ctx, b.ID, f.Owner, b.Gen); err == nil {
			err = h.Store.DeleteItem(ctx, b.ID, leftover(storage.ID(f.Owner)), 0)
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

// installed notes in the record of a box that the install of its server is kept. The host
// reads the note when it chooses the place for the next start.
func (h *Handler) installed(ctx context.Context, f frame.Snapshot) error {
	if h.Definition == nil {
		return nil
	}
	_, _, err := h.change(ctx, f.Box, func(b storage.Box) (storage.Box, decision) {
		definition := h.Definition(b.Server)
		if b.Runner != f.Runner || b.Installed == definition {
			return b, known
		}
		b.Installed = definition
		return b, write
	})
	return err
}

// leftover returns the id of an item for a session that has ended and whose snapshot must
// be removed. No stream has such an id.
func leftover(s storage.ID) storage.StreamID { return storage.StreamID("over-" + s) }

// leave removes the snapshot of a session that has ended, or leaves the removal to the
// sweep. If the box is asleep and this function may remove snapshots, leave does so at
// once. Otherwise it writes a leftover item, so that the sweep checks the box. There are
// three reasons for that. The box may have to be told of the end again, or it may save
// once more. Or this function may have no right to remove snapshots.
func (x boxes) leave(ctx context.Context, s storage.Session, b storage.Box) error {
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

// settleLeftover removes the snapshot of a session that has ended, once the box sleeps. If
// the box is awake, settleLeftover tells it again that the session is over. The runner
// then asks for the removal itself.
func (x boxes) settleLeftover(ctx context.Context, b storage.Box, it storage.Item) error {
	switch b.State {
	case storage.Awake:
		return ignoreClosed(x.post(ctx, b.Conn, frame.Stop{Session: it.Address.Session}))
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

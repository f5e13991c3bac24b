package relayhost

import (
	"context"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Snapshots of workspaces: a runner asks for URLs, the host gives them for the
// snapshots of the runner's own box alone. And what becomes of the snapshot of a
// session that has ended.

// Snapshots is where the host keeps what boxes save, by owner: a session's id, or a name
// for several sessions that share what is kept. Every method fails with Unavailable if
// it cannot be told; those that take a generation fail with session.Fenced, or do
// nothing, if a newer one has saved.
type Snapshots interface {
	// Newest gives a URL for GET, and when the snapshot was saved. NotFound if there
	// is none.
	Newest(ctx context.Context, box session.BoxID, owner string) (get string, saved time.Time, err error)
	// Room gives the name of a new object of size bytes, a URL for PUT that takes it,
	// and the header to send. TooLarge over the limit.
	Room(ctx context.Context, box session.BoxID, owner string, gen session.Generation, size int64) (object, put string, header map[string]string, err error)
	// Commit makes an object the newest snapshot. It may come twice, and late. Invalid
	// for one that Room never named.
	Commit(ctx context.Context, box session.BoxID, owner string, gen session.Generation, object string) error
	// Forget removes what gen or an older generation has saved.
	Forget(ctx context.Context, box session.BoxID, owner string, gen session.Generation) error
}

// snapshot answers what a runner asks of the snapshots of its box. It is known by the
// random id that the host has of the box's runner, as long as no other was started: one
// that was replaced gets no URL and moves no pointer.
func (h *Handler) snapshot(ctx context.Context, f frame.Snapshot) (frame.Frame, error) {
	reply := frame.Kept{N: f.N}
	if h.Snapshots == nil || f.Owner == "" || f.Box == "" {
		reply.Refused = session.Invalid
		return reply, nil
	}
	b, err := h.Store.Box(ctx, f.Box)
	if err != nil {
		return nil, err
	}
	if b.Runner == "" || b.Runner != f.Runner || f.Gen > b.Gen {
		reply.Refused = session.Fenced
		return reply, nil
	}
	proven(ctx)
	var saved time.Time
	switch f.Op {
	case frame.Get:
		if reply.URL, saved, err = h.Snapshots.Newest(ctx, b.ID, f.Owner); err == nil {
			reply.Saved = saved.UnixMilli()
		}
	case frame.Put:
		reply.Object, reply.URL, reply.Header, err = h.Snapshots.Room(ctx, b.ID, f.Owner, b.Gen, f.Size)
	case frame.Done:
		err = h.Snapshots.Commit(ctx, b.ID, f.Owner, b.Gen, f.Object)
	default: // Forget
		if err = h.Snapshots.Forget(ctx, b.ID, f.Owner, b.Gen); err == nil {
			err = h.Store.DeleteItem(ctx, b.ID, leftover(session.ID(f.Owner)), 0)
		}
	}
	switch code := session.CodeOf(err); code {
	case "":
	case session.NotFound, session.Fenced, session.TooLarge, session.Invalid:
		reply = frame.Kept{N: f.N, Refused: code}
	default:
		return nil, err // it asks again
	}
	return reply, nil
}

// leftover is the id of the item that says that a session has ended and its snapshot is
// to go. No stream has such a name.
func leftover(s session.ID) session.StreamID { return session.StreamID("over-" + s) }

// leave sees to the snapshot of a session that has ended. While its box is asleep,
// whoever can remove it does so at once. Else there is an item, which makes the box one
// that the sweep looks at: the box may have to be told once more, may save once more, or
// the function that is asked has no right to remove anything.
func (x boxes) leave(ctx context.Context, s session.Session, b session.Box) error {
	if x.Kept == nil || !x.Kept(s.Server) {
		return nil
	}
	if b.State == session.Asleep && x.Forget != nil {
		err := x.Forget(ctx, b.ID, string(s.ID), b.Gen)
		if err == nil {
			return nil
		}
		x.Log.WarnContext(ctx, "the snapshot of an ended session was not removed; the sweep will try again", "session_id", s.ID, "error", err)
	}
	_, err := x.Store.PutItem(ctx, session.Item{
		Box: b.ID, ID: leftover(s.ID), State: session.Leftover, Address: session.Address{Session: s.ID, Box: b.ID}, Created: time.Now(),
	})
	return err
}

// settleLeftover removes the snapshot of a session that has ended, once its box sleeps.
// One that is awake is told again that the session is over, which makes it ask for that
// itself.
func (x boxes) settleLeftover(ctx context.Context, b session.Box, it session.Item) error {
	switch b.State {
	case session.Awake:
		return ignoreClosed(x.post(ctx, b.Conn, frame.Stop{Session: it.Address.Session}))
	case session.Starting:
		return nil
	case session.Asleep:
	}
	if x.Forget == nil {
		return nil
	}
	if err := x.Forget(ctx, b.ID, string(it.Address.Session), b.Gen); err != nil {
		return err
	}
	return x.Store.DeleteItem(ctx, b.ID, it.ID, 0)
}

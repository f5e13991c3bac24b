package runner

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// SnapshotRequest is a request of a box about the snapshots of an owner. Type is one
// of: [frame.Get]; [frame.Put], with the Size of the snapshot; [frame.Done], with the
// Object that Put returned; or [frame.Forget].
type SnapshotRequest struct {
	Type   frame.Type
	Owner  string
	Size   int64 // bytes
	Object string
}

// SnapshotAnswer is the answer to Get (URL, Saved) and Put (URL, Header, Object). A URL
// is a secret and is valid for some minutes.
type SnapshotAnswer struct {
	URL    string
	Saved  time.Time
	Header map[string]string
	Object string
}

// Snapshot asks the host, and repeats the request until the host answers or ctx is
// done. The box does not fall asleep meanwhile.
//
// Errors: NotFound if there is no snapshot. [ErrFenced] if a newer runner runs the box,
// or has saved. TooLarge. Invalid if the host does not do this. Unavailable if ctx or
// [Runner.Run] has ended.
func (r *Runner) Snapshot(ctx context.Context, q SnapshotRequest) (SnapshotAnswer, error) {
	a := &query{frame: frame.Snapshot{Op: q.Type, Owner: q.Owner, Size: q.Size, Object: q.Object}, answer: make(chan frame.Kept, 1)}
	posted := r.post(func(l *life) { l.queries.query(a) })
	var f frame.Kept
	select {
	case f = <-a.answer:
	case <-r.done:
		posted = false
	case <-ctx.Done():
		r.post(func(l *life) { l.queries.unquery(a) })
		return SnapshotAnswer{}, session.Errorf(session.Unavailable, "the host does not answer about a snapshot").Because(context.Cause(ctx))
	}
	switch {
	case !posted:
		return SnapshotAnswer{}, session.Errorf(session.Unavailable, "there is no host any more to ask about a snapshot")
	case f.Refused != "":
		return SnapshotAnswer{}, session.Errorf(f.Refused, "the host refuses %q about a snapshot", q.Type)
	}
	return SnapshotAnswer{URL: f.URL, Saved: time.UnixMilli(f.Saved), Header: f.Header, Object: f.Object}, nil
}

// queries holds the requests about snapshots that the host has not answered.
type queries struct {
	*core
	links *links

	asking  map[int64]*query
	queried int64
}

type query struct {
	frame  frame.Snapshot
	answer chan frame.Kept // capacity 1
	again  alarm
}

func (qs *queries) query(q *query) {
	qs.queried++
	q.frame.N = qs.queried
	qs.asking[q.frame.N] = q
	qs.sayQuery(q)
}

// sayQuery sends a request now, and again until there is an answer. Without a
// connection resumeQueries sends it after the next welcome.
func (qs *queries) sayQuery(q *query) {
	if !qs.links.linked() {
		return
	}
	f := q.frame
	f.Sender = qs.sender()
	qs.links.live.send(outgoing{data: frame.Encode(f)})
	qs.set(&q.again, ackAfter, func() { qs.sayQuery(q) })
}

func (qs *queries) resumeQueries() {
	for _, n := range slices.Sorted(maps.Keys(qs.asking)) {
		qs.sayQuery(qs.asking[n])
	}
}

// answered handles the host's answer about a snapshot.
func (qs *queries) answered(f frame.Kept) {
	if q := qs.asking[f.N]; q != nil {
		qs.unquery(q)
		q.answer <- f
	}
}

func (qs *queries) unquery(q *query) {
	q.again.stop()
	delete(qs.asking, q.frame.N)
}

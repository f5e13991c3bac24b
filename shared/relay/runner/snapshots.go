package runner

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// SnapshotRequest is what a box asks of the snapshots of an owner: [Get], [Put] with the
// Size of what is to be put, [Done] with the Object that Put named, or [Forget].
type SnapshotRequest struct {
	Type   frame.Type
	Owner  string
	Size   int64 // bytes
	Object string
}

// SnapshotAnswer is the answer to Get (URL, Saved) and Put (URL, Header, Object). URLs
// are secrets and good for some minutes.
type SnapshotAnswer struct {
	URL    string
	Saved  time.Time
	Header map[string]string
	Object string
}

// Snapshot asks the host, as often as it takes until it answers or ctx is done. While
// it does the box does not fall asleep.
//
// Errors: NotFound if there is no snapshot; [ErrFenced] if the box has a newer runner, or
// a newer one has saved; TooLarge; Invalid for what the host does not do; Unavailable if
// ctx or [Runner.Run] has ended.
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

// queries has the questions about snapshots that the host has not answered.
type queries struct {
	*core
	links *links

	asking  map[int64]*query
	queried int64
}

type query struct {
	frame  frame.Snapshot
	answer chan frame.Kept // has room for one
	again  alarm
}

func (qs *queries) query(q *query) {
	qs.queried++
	q.frame.N = qs.queried
	qs.asking[q.frame.N] = q
	qs.sayQuery(q)
}

// sayQuery asks now, and again while there is no answer; without a connection the next
// welcome does.
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

// answered takes what the host says of a snapshot.
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

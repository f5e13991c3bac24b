package runner

import (
	"maps"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

// queries are the requests about snapshots that the host has not answered.
type queries struct {
	loop  *loop
	links *links

	asking  map[int64]*query
	queried int64
}

type query struct {
	frame  frame.Snapshot
	answer chan frame.Kept // gets the host's answer; capacity 1
	again  alarm
}

func (qs *queries) query(q *query) {
	qs.queried++
	q.frame.N = qs.queried
	qs.asking[q.frame.N] = q
	qs.sayQuery(q)
}

// sayQuery sends a request, and repeats it until the answer comes. Without a connection sayQuery
// does nothing; resumeQueries calls it after the next [frame.Welcome].
func (qs *queries) sayQuery(q *query) {
	if !qs.links.linked() {
		return
	}
	f := q.frame
	f.Sender = qs.links.sender()
	qs.links.live.send(outgoing{data: frame.Encode(f)})
	qs.loop.set(&q.again, ackAfter, func() { qs.sayQuery(q) })
}

func (qs *queries) resumeQueries() {
	for _, n := range slices.Sorted(maps.Keys(qs.asking)) {
		qs.sayQuery(qs.asking[n])
	}
}

// answered passes the host's answer to the caller of Snapshot.
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

package dynamostore

import (
	"context"
	"math/rand/v2"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// openFactor is by how much the log of a request that has not ended may be over
// the bounds.
const openFactor = 16

// looks is how often a stream is looked at while as much is written to it as a
// bound allows. To look costs reading the stream, which is a twentieth of having
// written it.
const looks = 4

// bound drops what is over the bounds of a stream after a batch was written to it.
// It costs nothing for most batches: by count it looks when the indexes of the
// batch pass a multiple of a quarter of the bound; by bytes, which nobody counts,
// by lot. What fails here is done by the next look.
func (s *Store) bound(ctx context.Context, b session.Batch, size int) {
	events, bytes := s.options.Events, s.options.Bytes
	if b.Stream != session.Common && !b.Final {
		events, bytes = events*openFactor, bytes*openFactor
	}
	step := session.Index(max(events/looks, 1))
	last := b.First + session.Index(len(b.Events)) - 1
	counted := int(last) > events && last/step != (b.First-1)/step
	if !counted && rand.Float64()*float64(bytes) >= float64(looks*size) {
		return
	}
	drop, err := s.tooMuch(ctx, b, events, bytes)
	if err == nil {
		_ = s.drop(ctx, drop)
	}
}

// tooMuch returns the batches of a stream that have to go, without their data: all
// that begin before as much as may stay is counted, from the batch just written
// backwards. It ends where it ended the last time.
func (s *Store) tooMuch(ctx context.Context, b session.Batch, events int, bytes int64) (drop []row, err error) {
	sp := span{
		pk: sessionKey(b.Session), from: eventKey(b.Stream, 0), to: eventKey(b.Stream, b.First), backwards: true,
		fields: "PK, SK, n, g, q, h, f, w, u, x, b, k, z",
	}
	err = s.query(ctx, sp, func(r row) (bool, error) {
		if r["b"] == nil {
			return false, nil
		}
		events -= int(r.num("n"))
		bytes -= r.num("b")
		if (events < 0 || bytes < 0) && firstOf(r) != b.First {
			drop = append(drop, r)
		}
		return true, nil
	})
	return drop, err
}

// drop takes the data from batches. Their keys stay taken until they expire: were
// they free, a writer that was fenced long ago could write there.
func (s *Store) drop(ctx context.Context, batches []row) error {
	var writes []types.WriteRequest
	for _, r := range batches {
		writes = append(writes, deletions(r)...)
		delete(r, "b")
		delete(r, "k")
		delete(r, "z")
		writes = append(writes, types.WriteRequest{PutRequest: &types.PutRequest{Item: r}})
	}
	return s.writeMany(ctx, writes)
}

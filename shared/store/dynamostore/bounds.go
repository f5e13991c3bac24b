package dynamostore

import (
	"context"
	"math/rand/v2"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// openFactor is the factor by which the log of an open request may exceed the limits of a
// stream.
const openFactor = 16

// looks is how often, on average, the store checks a stream while it grows by as much as its limit
// allows. A check reads the stream, which costs a twentieth of writing it.
const looks = 4

// bound checks the limits of a stream after a batch was written to it, and drops batches that
// exceed them. Beyond the limit of events, it checks after each further quarter of the limit. It also
// checks at random times, because there is no running total of the bytes. If a check fails with an
// error, the next check does the work.
func (s *Store) bound(ctx context.Context, b storage.Batch, size int) {
	events, bytes := s.options.Events, s.options.Bytes
	if b.Stream != storage.Standalone && !b.Final {
		events, bytes = events*openFactor, bytes*openFactor
	}
	step := storage.Index(max(events/looks, 1))
	last := b.First + storage.Index(len(b.Events)) - 1
	counted := int(last) > events && last/step != (b.First-1)/step
	if !counted && rand.Float64()*float64(bytes) >= float64(looks*size) {
		return
	}
	drop, err := s.tooMuch(ctx, b, events, bytes)
	if err == nil {
		_ = s.drop(ctx, drop)
	}
}

// tooMuch returns the batches to drop, without their data. It reads the stream backwards from the
// batch b, which was just written, until it meets a batch that was dropped earlier.
func (s *Store) tooMuch(ctx context.Context, b storage.Batch, events int, bytes int64) (drop []row, err error) {
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

// drop removes the data of batches. It keeps their keys until they expire, so that a
// writer that was fenced long ago cannot write there.
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

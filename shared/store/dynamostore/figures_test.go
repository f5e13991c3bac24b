package dynamostore

import (
	"bytes"
	"maps"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

type cost struct {
	Reads, Writes float64
	Requests      map[string]int64
}

func costOf(s *Store, call func() error) (cost, error) {
	before := s.Usage()
	err := call()
	after := s.Usage()
	maps.DeleteFunc(after.Requests, func(k string, n int64) bool { return n == before.Requests[k] })
	for k := range after.Requests {
		after.Requests[k] -= before.Requests[k]
	}
	return cost{after.ReadUnits - before.ReadUnits, after.WriteUnits - before.WriteUnits, after.Requests}, err
}

func lines(n, size int) [][]byte {
	var events [][]byte
	for range n {
		events = append(events, bytes.Repeat([]byte("x"), size))
	}
	return events
}

// DynamoDB Local counts as AWS does, with two exceptions. A query that finds nothing, and
// each row that BatchGetItem does not find, are free in DynamoDB Local and cost a unit on
// AWS. Neither of the two reports the cost of a refused write.
func TestEachOperationCostsWhatIsSaid(t *testing.T) {
	s := open(t, Options{Events: 1 << 30, Bytes: 1 << 50})
	const box = storage.BoxID("acme/everything")
	id, stream, item := storage.NewID(), storage.NewStreamID(), storage.NewStreamID()
	batch := func(first storage.Index, events [][]byte) func() error {
		return func() error {
			return s.Append(t.Context(), storage.Batch{
				Session: id, Stream: stream, First: first, Gen: 12, Seq: int64(first), Events: events, Expires: time.Now().Add(time.Hour),
			})
		}
	}
	x := storage.Session{
		ID: id, Tenant: "acme", Server: "everything", Principal: "alice@example.org", Init: bytes.Repeat([]byte(" "), 200),
		Created: time.Now(), Used: time.Now(), Expires: time.Now().Add(time.Hour), Version: "2025-11-25", Subscribed: []string{"file:///a"},
	}
	read := func(after storage.Index, limit int) func() error {
		return func() error {
			_, err := s.Read(t.Context(), id, stream, after, limit)
			return err
		}
	}
	asleep, awake := storage.Box{ID: box, Rev: 0}, storage.Box{ID: box, Rev: 1, State: storage.Starting, Runner: "r"}
	for _, c := range []struct {
		name string
		call func() error
		want cost
	}{
		{"Create, with the index of tenants", func() error { return s.Create(t.Context(), x) }, cost{0, 2, map[string]int64{"PutItem": 1}}},
		{"SaveBox, asleep", func() error { return s.SaveBox(t.Context(), asleep) }, cost{0, 1, map[string]int64{"PutItem": 1}}},
		{"SaveBox, into the index of what is due", func() error { return s.SaveBox(t.Context(), awake) }, cost{0, 2, map[string]int64{"PutItem": 1}}},
		{"SaveBox, still due", func() error { awake.Rev = 2; return s.SaveBox(t.Context(), awake) }, cost{0, 1, map[string]int64{"PutItem": 1}}},
		{"Load", func() error {
			var err error
			x, _, err = s.Load(t.Context(), id, box)
			return err
		}, cost{2, 0, map[string]int64{"BatchGetItem": 1}}},
		{"Save", func() error { return s.Save(t.Context(), x) }, cost{0, 1, map[string]int64{"PutItem": 1}}},
		{"Append of 1 event", batch(1, lines(1, 700)), cost{0, 1, map[string]int64{"PutItem": 1}}},
		{"Append of the same again", batch(1, lines(1, 700)), cost{0, 0, map[string]int64{"PutItem": 1}}},
		{"Append of 100 events of 200 bytes", batch(2, lines(100, 200)), cost{0, 20, map[string]int64{"PutItem": 1}}},
		{"Append of 1 MiB: 3 parts and the batch", batch(102, lines(1, 1<<20)), cost{1, 1028, map[string]int64{"GetItem": 1, "BatchWriteItem": 1, "PutItem": 1}}},
		{"Tail", func() error {
			_, err := s.Tail(t.Context(), id, stream)
			return err
		}, cost{1, 0, map[string]int64{"Query": 1}}},
		{"Read of 100 events at a batch", read(1, 100), cost{5, 0, map[string]int64{"Query": 1}}},
		{"Read of 10 events inside a batch, with a look back", read(50, 10), cost{6, 0, map[string]int64{"Query": 2}}},
		{"Read of 1 MiB, with its parts", read(101, 1), cost{259, 0, map[string]int64{"Query": 1, "BatchGetItem": 1}}},
		{"PutItem, into the index of what is due", func() error {
			_, err := s.PutItem(t.Context(), storage.Item{Box: box, ID: item, State: storage.Waiting, Raw: lines(1, 500)[0]})
			return err
		}, cost{0, 2, map[string]int64{"PutItem": 1}}},
		{"Claim", func() error {
			_, err := s.Claim(t.Context(), box, item, 1)
			return err
		}, cost{0, 1, map[string]int64{"UpdateItem": 1}}},
		{"Due", func() error {
			_, err := s.Due(t.Context())
			return err
		}, cost{0.5, 0, map[string]int64{"Scan": 1}}},
		{"DeleteItem", func() error { return s.DeleteItem(t.Context(), box, item, 1) }, cost{0, 2, map[string]int64{"DeleteItem": 1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := costOf(s, c.call)
			commontest.OKIn(t, c.name, err)
			commontest.SameIn(t, c.name, c.want, got)
		})
	}
}

package sqlitestore

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// BenchmarkReplay measures the return of a client, which reads all events of a
// stream, of 120 bytes in batches of 10.
func BenchmarkReplay(b *testing.B) {
	s := open(b, filepath.Join(b.TempDir(), "store.db"), Options{Events: 10_000})
	defer func() { _ = s.Close() }()
	for _, events := range []int{1, 10, 100, 1000} {
		id := storage.NewID()
		fillStream(b, s, id, events)
		b.Run(fmt.Sprint(events), func(b *testing.B) {
			b.ReportAllocs()
			defer processorTime(b)()
			for b.Loop() {
				p, err := s.Read(b.Context(), id, "stream", 0, storage.MaxRead)
				if err != nil || len(p.Events) != events {
					b.Fatal(len(p.Events), err)
				}
			}
		})
	}
}

func fillStream(b *testing.B, s storage.Store, id storage.ID, events int) {
	b.Helper()
	event := bytes.Repeat([]byte("1"), 120)
	for first := 1; first <= events; first += 10 {
		batch := storage.Batch{
			Session: id, Stream: "stream", First: storage.Index(first), Gen: 1, Seq: int64(first),
			Final: first+10 > events, Expires: time.Now().Add(time.Hour),
		}
		for range min(10, events-first+1) {
			batch.Events = append(batch.Events, event)
		}
		commontest.OK(b, s.Append(b.Context(), batch))
	}
}

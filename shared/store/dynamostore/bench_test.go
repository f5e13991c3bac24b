package dynamostore

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// BenchmarkCall measures the work of the store for a tools/call, against DynamoDB Local.
// Most of the time is DynamoDB Local's; the allocations are the driver's.
func BenchmarkCall(b *testing.B) {
	s := open(b, Options{})
	x := storage.Session{
		ID: storage.NewID(), Server: "echo", Digest: "d", Tenant: "local", Principal: "local", Transport: storage.HTTP,
		State: storage.Ready, Version: "2025-11-25", Created: time.Now(), Used: time.Now(), Expires: time.Now().Add(time.Hour),
		Init: json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}`),
	}
	commontest.OK(b, s.Create(b.Context(), x))
	b.Run("load", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := s.Load(b.Context(), x.ID, "local/echo"); err != nil {
				b.Fatal(err)
			}
		}
	})
	event := bytes.Repeat([]byte("1"), 150)
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			err := s.Append(b.Context(), storage.Batch{
				Session: x.ID, Stream: storage.NewStreamID(), First: 1, Gen: 1, Seq: 1, Final: true,
				Events: [][]byte{event}, Expires: time.Now().Add(time.Hour),
			})
			commontest.OK(b, err)
		}
	})
}

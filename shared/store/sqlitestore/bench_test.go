package sqlitestore

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// BenchmarkCall measures the cost of a tools/call for the store: one Load of the
// session with its box, and one Append of an answer of 150 bytes.
func BenchmarkCall(b *testing.B) {
	s := open(b, filepath.Join(b.TempDir(), "store.db"))
	defer func() { _ = s.Close() }()
	x := storage.Session{
		ID: storage.NewID(), Server: "everything", Digest: strings.Repeat("d", 64), Tenant: "local", Principal: "local",
		Transport: storage.HTTP, State: storage.Ready, Version: "2025-11-25", Created: time.Now(), Used: time.Now(),
		Init:    json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}`),
		Expires: time.Now().Add(time.Hour),
	}
	box := storage.Box{ID: "local/everything", Tenant: "local", Server: "everything", State: storage.Awake, Gen: 1, Runner: "r", Conn: "c"}
	event := []byte(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"` + strings.Repeat("x", 80) + `"}]}}`)
	commontest.OK(b, s.Create(b.Context(), x))
	commontest.OK(b, s.SaveBox(b.Context(), box))
	b.Run("load", func(b *testing.B) {
		for b.Loop() {
			_, _, err := s.Load(b.Context(), x.ID, box.ID)
			commontest.OK(b, err)
		}
	})
	b.Run("append", func(b *testing.B) {
		for b.Loop() {
			batch := storage.Batch{
				Session: x.ID, Stream: storage.NewStreamID(), First: 1, Gen: 1, Seq: 1, Final: true,
				Events: [][]byte{event}, Expires: time.Now().Add(time.Hour),
			}
			commontest.OK(b, s.Append(b.Context(), batch))
		}
	})
}

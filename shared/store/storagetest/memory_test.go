package storagetest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestMemoryKeepsTheContract(t *testing.T) {
	Store(t, Harness{Open: func(*testing.T) storage.Store { return NewMemory() }})
}

func TestMemoryForgetsWhatHasExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory()
		for i, life := range []time.Duration{time.Minute, time.Hour} {
			noError(t, "Append", m.Append(t.Context(), storage.Batch{
				Session: "s", First: storage.Index(i + 1), Gen: 1, Seq: int64(i + 1),
				Events: [][]byte{[]byte(`{}`)}, Expires: time.Now().Add(life),
			}))
		}
		page := func() storage.Page {
			p, err := m.Read(t.Context(), "s", storage.Standalone, 0, 10)
			noError(t, "Read", err)
			return p
		}
		if p := page(); len(p.Events) != 2 || p.Gap {
			t.Fatalf("before: %d events, gap %v; want 2 and no gap", len(p.Events), p.Gap)
		}
		time.Sleep(2 * time.Minute) // in fake time
		if p := page(); len(p.Events) != 1 || !p.Gap {
			t.Fatalf("after the first expired: %d events, gap %v; want 1 and a gap", len(p.Events), p.Gap)
		}
		if got := len(m.Batches()); got != 2 {
			t.Fatalf("Batches has %d, want both", got)
		}
	})
}

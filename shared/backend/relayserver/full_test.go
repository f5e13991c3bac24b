package relayserver_test

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// The record of box 0 says which boxes are full, until they fall asleep.
func TestFullBoxIsNotedUntilItSleeps(t *testing.T) {
	for n := range 3 {
		first := storage.BoxFor("t", "s")
		id := first.Numbered(n)
		store := storagetest.NewMemory()
		commontest.OK(t, store.SaveBox(t.Context(), storage.Box{ID: id, Tenant: "t", Server: "s", Gen: 1, State: storage.Awake, Conn: "c", Runner: "r", Link: 1}))
		c, needs := configOf(t, store), 0
		c.MakeRoom = func() { needs++ }
		h := relayserver.NewHandler(c)
		full := func(conn string, f frametest.Frame) uint32 {
			t.Helper()
			f.Box, f.Gen, f.Runner, f.Link = id, 1, "r", 1
			if _, err := h.Frame(t.Context(), conn, frametest.Encode(f)); err != nil {
				t.Fatal(err)
			}
			b, err := store.Box(t.Context(), first)
			commontest.OK(t, err)
			return b.Full
		}
		says := frametest.Frame{Type: frame.TypeStatus, Session: "one", Phase: frame.PhaseFull}
		if got := full("another", says); got != 0 {
			t.Errorf("box %d: a stranger says that it is full, and %b are", n, got)
		}
		for range 2 {
			if got := full("c", says); got != 1<<n {
				t.Errorf("box %d is full, and the record says %b", n, got)
			}
		}
		for _, conn := range []string{"another", "c"} {
			full(conn, frametest.Frame{Type: frame.TypeStatus, Phase: frame.PhaseMemory})
		}
		if needs != 1 {
			t.Errorf("room was made %d times for box %d, and it asked once", needs, n)
		}
		if got := full("c", frametest.Frame{Type: frame.TypeBye}); got != 0 {
			t.Errorf("box %d sleeps, and the record says %b", n, got)
		}
		if got := full("c", says); got != 0 {
			t.Errorf("box %d was full before it slept, and the record says %b", n, got)
		}
	}
}

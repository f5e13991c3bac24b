package relayserver_test

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// The record of box 0 says which boxes are full, until they fall asleep.
func TestFullBoxIsNotedUntilItSleeps(t *testing.T) {
	for n := range 3 {
		a := newAsylum(t)
		id := asylumBox.Numbered(n)
		if n > 0 {
			commontest.OK(t, a.store.SaveBox(t.Context(), storage.Box{ID: id, Tenant: "t", Server: "s", Gen: asylumGen, State: storage.Awake, Conn: "c", Runner: "r", Link: 1}))
		}
		needs := 0
		a.config.MakeRoom = func() { needs++ }
		full := func(kind frame.Type, phase string) uint32 {
			a.handle(a.from(kind, func(f *frametest.Frame) { f.Box, f.Phase, f.Session = id, phase, "s1" }))
			return a.box().Full
		}
		a.conn = "another"
		commontest.EqualIn(t, "full, says a stranger", 0, full(frame.TypeStatus, frame.PhaseFull))
		full(frame.TypeStatus, frame.PhaseMemory)
		a.conn = "c"
		for range 2 {
			commontest.EqualIn(t, "full", uint32(1)<<n, full(frame.TypeStatus, frame.PhaseFull))
		}
		full(frame.TypeStatus, frame.PhaseMemory)
		commontest.EqualIn(t, "times that room was made", 1, needs)
		commontest.EqualIn(t, "full, asleep", 0, full(frame.TypeBye, ""))
		commontest.EqualIn(t, "full, said before the sleep", 0, full(frame.TypeStatus, frame.PhaseFull))
	}
}

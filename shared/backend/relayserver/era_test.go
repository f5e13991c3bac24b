package relayserver_test

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func TestNextRunnerIsToldTheEraThatWasFoundOut(t *testing.T) {
	a := newAsylum(t)
	status := func(era string) {
		t.Helper()
		a.handle(frametest.Frame{
			Type: frame.TypeStatus, Box: asylumBox, Gen: asylumGen, Session: "s1", Ticket: a.config.Sealer.Seal(a.address(), asylumGen),
			Detail: wire.V20251125, Era: era, Payload: []byte(`{"protocolVersion":"2025-11-25"}`),
		})
	}
	status("")
	if era := a.box().Era; era != "" {
		t.Errorf("no news made it %q", era)
	}
	a.store.Reset()
	status("")
	if n := a.store.Counts(); n.Calls["Box"] > 0 || n.Calls["SaveBox"] > 0 {
		t.Errorf("no news costs %v", n.Calls)
	}
	status(frame.EraModern)
	a.sleeps()
	a.waits()
	a.sweep()
	commontest.EqualIn(t, "the next runner is told", frame.EraModern, a.env[frame.EnvEra])
	status(frame.EraLegacy)
	commontest.EqualIn(t, "it is no longer modern, and stands as", frame.EraLegacy, a.box().Era)
}

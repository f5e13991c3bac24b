package relayhost_test

import (
	"context"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
	"github.com/dormouse-mcp/dormouse/shared/relay/frametest"
	"github.com/dormouse-mcp/dormouse/shared/relay/relayhost"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// told is a fleet that records the environments of runners.
type told struct {
	*asylum
	env map[string]string
}

func (f *told) Run(_ context.Context, t fleet.Task) (string, error) {
	f.env = t.Env
	return "task-2", nil
}

func TestNextRunnerIsToldTheEraThatWasFoundOut(t *testing.T) {
	a := newAsylum(t)
	runners := &told{asylum: a}
	a.config.Fleet = runners
	status := func(era string) {
		t.Helper()
		f := frametest.Frame{
			Type: frame.TypeStatus, Box: asylumBox, Gen: asylumGen, Session: "s1", Ticket: a.config.Sealer.Seal(a.address(), asylumGen),
			Detail: wire.V20251125, Era: era, Payload: []byte(`{"protocolVersion":"2025-11-25"}`),
		}
		if _, err := relayhost.NewHandler(a.config).Frame(t.Context(), "c", frametest.Encode(f)); err != nil {
			t.Fatal(err)
		}
	}
	era := func() string {
		b, err := a.store.Box(t.Context(), asylumBox)
		if err != nil {
			t.Fatal(err)
		}
		return b.Era
	}
	status("")
	if era() != "" {
		t.Errorf("no news made it %q", era())
	}
	a.store.Reset()
	status("")
	if n := a.store.Counts(); n.Calls["Box"] > 0 || n.Calls["SaveBox"] > 0 {
		t.Errorf("no news costs %v", n.Calls)
	}
	status(frame.EraModern)
	a.sleeps()
	if _, err := a.store.PutItem(t.Context(), session.Item{Box: asylumBox, ID: a.stream, State: session.Waiting, Address: a.address(), Raw: []byte(`{}`), NotAfter: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	a.sweep()
	if got := runners.env[frame.EnvEra]; got != frame.EraModern {
		t.Errorf("the next runner is told %q", got)
	}
	status(frame.EraLegacy)
	if era() != frame.EraLegacy {
		t.Errorf("it is no longer modern, and stands as %q", era())
	}
}

package relayserver_test

import (
	"sync"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// teller is a meter that remembers the accounts it got.
type teller struct {
	mu   sync.Mutex
	told []storage.Account
}

func (m *teller) Spent(a storage.Account) storage.Spent {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told = append(m.told, a)
	return storage.Spent{}
}

func TestNobodyIsBilledForAFrameOfSomebodyElse(t *testing.T) {
	m := &teller{}
	c := configOf(t, storagetest.NewMemory())
	c.Meter = m
	h := relayserver.NewHandler(c)
	for _, f := range []frametest.Frame{
		{Type: frame.TypeHello, Box: "victim/files", Gen: 1, Runner: "r", Link: 1, Token: "guessed"},
		{Type: frame.TypePull, Box: "victim/files", Gen: 1, Runner: "r", N: 1},
		{Type: frame.TypeEvents, Box: "victim/files", Gen: 1, Session: "s", Seq: 1, Items: []frame.EventItem{{Ticket: "made up", Lens: []int{2}}}, Payload: []byte("{}")},
	} {
		_, _ = h.Frame(t.Context(), "c", frametest.Encode(f)) // refused, in one way or another
	}
	if len(m.told) != 3 {
		t.Fatalf("%d frames were counted, want 3", len(m.told))
	}
	for _, a := range m.told {
		if a.Tenant != "" || a.Server != "" || a.Session != "" || a.In == 0 {
			t.Errorf("a frame nobody was asked for is counted as %+v", a)
		}
	}
}

func TestABoxIsBilledForWhatItAsksOfSnapshotsWhateverTheAnswer(t *testing.T) {
	a := newAsylum(t)
	a.keeping()
	m := &teller{}
	a.config.Meter = m
	if got := a.asks(frametest.Frame{Type: frame.Get, Owner: "s1"}); got.Refused != storage.NotFound {
		t.Fatalf("answered with %+v", got)
	}
	a.asks(frametest.Frame{Type: frame.Get, Owner: "s1", Box: asylumBox, Gen: asylumGen, Runner: "made up"})
	if len(m.told) != 2 || m.told[0].Tenant != "t" || m.told[0].Server != "s" || m.told[1].Tenant != "" {
		t.Errorf("counted as %+v", m.told)
	}
}

func TestABoxNamesNoSessionInTheBillThatItHasNoTicketOf(t *testing.T) {
	a := newAsylum(t)
	m := &teller{}
	a.config.Meter = m
	said := []byte(`{"jsonrpc":"2.0","method":"x"}`)
	for _, f := range []frametest.Frame{
		{Type: frame.TypeStatus, Session: "made up", Process: "p", Phase: "ready"},
		{Type: frame.TypePull, Runner: "r", N: 1, Session: "made up"},
		{Type: frame.TypeTaken, Session: "made up", Tickets: []string{a.config.Sealer.Seal(a.address(), asylumGen)}},
		{Type: frame.TypeEvents, Session: "s1", Seq: 1, Items: []frame.EventItem{{
			Ticket: a.config.Sealer.Seal(a.address(), asylumGen), Stream: a.stream, First: 1, Lens: []int{len(said)},
		}}, Payload: said},
	} {
		f.Box, f.Gen = asylumBox, asylumGen
		a.handle(f)
	}
	var got []storage.ID
	for _, told := range m.told {
		if told.Tenant != "t" {
			t.Errorf("counted as %+v", told)
		}
		got = append(got, told.Session)
	}
	commontest.SameIn(t, "sessions", []storage.ID{"", "", "s1", "s1"}, got)
}

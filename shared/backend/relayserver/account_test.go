package relayserver_test

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// teller is a meter that remembers the accounts it got.
type teller struct{ told []storage.Account }

func (m *teller) Spent(a storage.Account) storage.Spent {
	m.told = append(m.told, a)
	return storage.Spent{}
}

// A box pays for what it says, whatever the answer, and nobody for what somebody else says in
// its name. It names only those sessions in the bill that it has a ticket of.
func TestAFrameIsBilledToTheBoxThatSaidIt(t *testing.T) {
	a := newAsylum(t)
	a.keeping()
	m := &teller{}
	a.config.Meter = m
	for _, tt := range []struct {
		what            string
		kind            frame.Type
		change          func(*frametest.Frame)
		tenant, session string
	}{
		{"another runner", frame.TypePull, func(f *frametest.Frame) { f.Runner = "x" }, "", ""},
		{"a ticket that was made up", frame.TypeEvents, func(f *frametest.Frame) {
			f.Session, f.Items, f.Payload = "s1", []frame.EventItem{{Ticket: "made up", Lens: []int{2}}}, []byte("{}")
		}, "", ""},
		{"a snapshot that is none", frame.Get, func(f *frametest.Frame) { f.Owner = "s1" }, "t", ""},
		{"a pull", frame.TypePull, func(f *frametest.Frame) { f.Session = "made up" }, "t", ""},
		{"a mark", frame.TypeTaken, func(f *frametest.Frame) { f.Session, f.Tickets = "made up", []string{a.ticket()} }, "t", "s1"},
		{"events", frame.TypeEvents, func(f *frametest.Frame) {
			f.Session, f.Seq, f.Payload = "s1", 1, []byte("{}")
			f.Items = []frame.EventItem{{Ticket: a.ticket(), Stream: a.stream, First: 1, Lens: []int{2}}}
		}, "t", "s1"},
	} {
		m.told = nil
		_, _ = a.say(a.from(tt.kind, tt.change)) // some are refused, in one way or another
		if len(m.told) != 1 || m.told[0].In == 0 {
			t.Fatalf("%s is counted as %+v", tt.what, m.told)
		}
		commontest.EqualIn(t, "tenant of "+tt.what, tt.tenant, m.told[0].Tenant)
		commontest.EqualIn(t, "session of "+tt.what, storage.ID(tt.session), m.told[0].Session)
	}
}

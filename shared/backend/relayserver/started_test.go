package relayserver_test

import (
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func (a *asylum) startsWith(lists string) {
	a.t.Helper()
	address := a.address()
	address.Digest = "digest"
	a.handle(a.from(frame.TypeStatus, func(f *frametest.Frame) {
		f.Session, f.Ticket, f.Lists, f.Payload = "s1", a.config.Sealer.Seal(address, asylumGen), "kind", []byte(lists)
	}))
}

// The first fingerprint of a kind is kept. Another one has the box tell its client, over the
// connection that the frame came from.
func TestBoxTellsTheClientOfAProcessThatListsOtherwise(t *testing.T) {
	a := newAsylum(t)
	for i, lists := range []string{`{"tools/list":"a"}`, `{"tools/list":"a"}`, `{"tools/list":"b"}`, `{"tools/list":"b"}`} {
		a.posts = nil
		a.startsWith(lists)
		told := a.posted(frame.TypeDeliver)
		if i != 2 {
			commontest.EqualIn(t, "posts", 0, len(a.posts))
			continue
		}
		if len(told) != 1 || told[0].Session != "s1" || !told[0].Moved || !told[0].Looks || told[0].AckWithin != 0 ||
			!strings.HasSuffix(string(told[0].Payload), `{"jsonrpc":"2.0","method":"notifications/initialized"}`) {
			t.Errorf("the box got %+v", a.posts)
		}
	}
}

// A hostile box may name any kind. It reaches no other part of its record, and no other
// record.
func TestFingerprintOfAHostileBoxIsBounded(t *testing.T) {
	s := newSiege(t)
	lists := func(kind, fingerprint string) frametest.Frame {
		return s.from(frame.TypeStatus, func(f *frametest.Frame) {
			f.Session, f.Ticket, f.Lists, f.Payload = "s1", s.ticket("s1", "d1", asylumBox, asylumGen), kind, []byte(fingerprint)
		})
	}
	s.gainsNothing("a long kind", lists(strings.Repeat("x", 201), `{}`))
	s.gainsNothing("a long fingerprint", lists("x", `"`+strings.Repeat("x", 5<<10)+`"`))
	s.handle(lists("2025-11-25", `{"evil":1}`))
	_, err := s.memory.Handshake(t.Context(), "digest", "2025-11-25")
	commontest.EqualIn(t, "the record is", storage.NotFound, storage.CodeOf(err))
}

// A request may wait until the box is woken with another program than the one that the host
// had compared its session with.
func TestRequestThatAnotherProgramGetsSaysSo(t *testing.T) {
	for code, moved := range map[string]bool{"": false, "old": false, "new": true} {
		a := newAsylum(t)
		a.changes(func(b *storage.Box) { b.Code = code })
		s := a.session()
		s.Digest = "old"
		commontest.OK(t, a.store.Save(t.Context(), s))
		a.waits()
		a.handle(a.from(frame.TypePull))
		if d := a.posted(frame.TypeDeliver); len(d) != 1 || d[0].Moved != moved {
			t.Errorf("code %q: %+v", code, d)
		}
	}
}

func TestABoxLearnsWhichSessionsAreOfOnePrincipalAndNothingElse(t *testing.T) {
	a := newAsylum(t)
	hash := func(principal, server string) string {
		d := callOf("t", server)
		d.Client.Principal = principal
		a.posts = nil
		_, err := a.backend().Deliver(t.Context(), d, storage.Box{ID: d.Address.Box, State: storage.Awake, Conn: "c", Gen: 1})
		commontest.OK(t, err)
		return a.posted(frame.TypeDeliver)[0].Principal
	}
	ann := hash("ann@example.org", "s")
	if again := hash("ann@example.org", "s"); again != ann || ann == "" || strings.Contains(ann, "ann") {
		t.Errorf("one principal is %q and %q", ann, again)
	}
	if bob, elsewhere := hash("bob@example.org", "s"), hash("ann@example.org", "other"); bob == ann || elsewhere == ann {
		t.Errorf("ann is %q, bob %q, and ann in another box %q", ann, bob, elsewhere)
	}
}

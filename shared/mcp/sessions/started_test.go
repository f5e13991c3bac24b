package sessions_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// starts reports a fresh process of a session, and returns whether it lists otherwise.
func (l *lister) starts(t *testing.T, id storage.ID, gen storage.Generation, kind string, own bool, lists string) bool {
	t.Helper()
	a := storage.Address{Session: id, Box: "t/s", Digest: storage.RecordFor("t", "d1")}
	s, news, err := sessions.NoteStart(t.Context(), l.store, a, sessions.Start{Kind: kind, Own: own, Gen: gen, Lists: json.RawMessage(lists)})
	if err != nil || news && s.ID != id {
		t.Fatal(s.ID, err)
	}
	return news
}

// knows reports whether the record has the tools for a new client with these capabilities.
func (l *lister) knows(t *testing.T, capabilities string) bool {
	t.Helper()
	_, d := l.ask(t, httpCaller(), l.legacy(t, httpCaller(), capabilities), askTools)
	return d == nil
}

// lists has a process answer a new client with these capabilities, and returns its session.
func (l *lister) lists(t *testing.T, capabilities string) storage.ID {
	t.Helper()
	id := l.legacy(t, httpCaller(), capabilities)
	_, d := l.ask(t, httpCaller(), id, askTools)
	l.answers(t, d, `"result":`+toolList)
	return id
}

func TestFreshProcessThatListsOtherwiseReplacesTheRecordForAllKindsOfClients(t *testing.T) {
	const plain, rich = `{}`, `{"elicitation":{}}`
	l := newLister(t)
	l.announcing(t, "true")
	first := l.lists(t, plain)
	l.lists(t, rich)
	if l.starts(t, first, 1, "plain", false, `{"tools/list":"a"}`) || !l.knows(t, plain) || !l.knows(t, rich) {
		t.Error("the first process has replaced what it has said itself")
	}
	l.box(t, func(b *storage.Box) { b.Gen = 2 })
	l.store.Reset()
	if l.starts(t, first, 2, "plain", false, `{"tools/list":"a"}`) || !l.knows(t, plain) || !l.knows(t, rich) {
		t.Error("a process that lists the same has replaced the record")
	}
	if !l.starts(t, first, 2, "plain", false, `{"tools/list":"b"}`) {
		t.Error("nobody has noticed that the process lists otherwise")
	}
	if l.knows(t, plain) || l.knows(t, rich) {
		t.Error("the record still has a list of the process before")
	}
	if _, err := l.store.Handshake(t.Context(), storage.RecordFor("t", "d1"), "2025-11-25"); err == nil {
		t.Error("the record still has the handshake of the process before")
	}
	if l.starts(t, first, 2, "plain", false, `{"tools/list":"b"}`) {
		t.Error("a second process with the same lists is news")
	}
	l.announcing(t, "true")
	l.gen = 3
	l.box(t, func(b *storage.Box) { b.Gen = 3 })
	l.lists(t, rich)
	if !l.knows(t, rich) {
		t.Error("the record has no list of a later generation")
	}
}

// Lists of earlier generations may be those of another program if nothing can be compared.
func TestProcessOfAnUnknownKindEndsTheListsOfEarlierGenerations(t *testing.T) {
	for name, c := range map[string]struct {
		gen   storage.Generation
		own   bool
		known bool
	}{
		"of the same generation": {1, false, true},
		"of a later one":         {2, false, false},
		"of another principal":   {2, true, true},
	} {
		l := newLister(t)
		l.announcing(t, "true")
		id := l.lists(t, `{}`)
		l.box(t, func(b *storage.Box) { b.Gen = c.gen })
		if l.starts(t, id, c.gen, "other", c.own, `{}`) || l.knows(t, `{}`) != c.known {
			t.Errorf("a process %s: the record is used: %t, want %t", name, !c.known, c.known)
		}
	}
}

// Each session that was there hears once of lists that a process of another session has
// found to be others.
func TestSessionsHearOnceThatAProcessListsOtherwise(t *testing.T) {
	const call = `{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"x"}}`
	l := newLister(t)
	finder, other := l.legacy(t, httpCaller(), `{}`), l.legacy(t, httpCaller(), `{}`)
	modern := sessions.Client{Init: json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{}}`)}
	send := func() bool {
		if _, _, err := l.Send(t.Context(), modernCaller, modern, "tools/call", json.RawMessage(`{"name":"x"}`)); err != nil {
			t.Fatal(err)
		}
		return (*l.deliveries)[len(*l.deliveries)-1].Moved
	}
	send()
	l.starts(t, finder, 1, "plain", false, `{"tools/list":"a"}`)
	l.starts(t, finder, 1, "plain", false, `{"tools/list":"b"}`)
	late := l.legacy(t, httpCaller(), `{}`)
	for name, c := range map[string]struct {
		id    storage.ID
		moved bool
	}{"the finder, which hears of it otherwise": {finder, false}, "another": {other, true}, "a later one": {late, false}} {
		for i, want := range []bool{c.moved, false} {
			if _, d := l.ask(t, httpCaller(), c.id, call); d.Moved != want {
				t.Errorf("%s, request %d: it moves: %t", name, i, d.Moved)
			}
		}
	}
	if !send() || send() {
		t.Error("the modern client does not hear of it once")
	}
}

// Clients may invent kinds. The record stays small, and says nothing that is old.
func TestInventedKindsOfClientsAreNotKept(t *testing.T) {
	for _, own := range []bool{true, false} {
		l := newLister(t)
		l.announcing(t, "true")
		id := l.lists(t, `{}`)
		for i := range 100 {
			l.starts(t, id, 1, fmt.Sprint(i), own, `{}`)
		}
		parts, err := l.store.ListHandshakes(t.Context(), storage.RecordFor("t", "d1"), "start ")
		if err != nil || len(parts) != 64 || !l.knows(t, `{}`) {
			t.Errorf("the record has %d kinds, %v", len(parts), err)
		}
		l.box(t, func(b *storage.Box) { b.Gen = 2 })
		if l.starts(t, id, 2, "99", own, `{}`) || l.knows(t, `{}`) {
			t.Error("a list that may be old is used")
		}
	}
}

package sessions_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// Logs tell why a session is not there. Clients are told the same of each.
func TestTheEndOfASessionHasACause(t *testing.T) {
	h, store, id := listening(t)
	ended := func(q storage.Quit) storage.ID {
		return withState(t, store, func(s *storage.Session) { s.State, s.Quit = storage.Ended, q })
	}
	other := someone
	other.Principal = "q"
	for name, c := range map[string]struct {
		caller sessions.Caller
		id     storage.ID
		why    error
	}{
		"there is none":            {someone, storage.NewID(), storage.NotFound},
		"ended by its client":      {someone, ended(storage.QuitClient), storage.QuitClient},
		"ended by an operator":     {someone, ended(storage.QuitService), storage.QuitService},
		"initialize failed":        {someone, ended(storage.QuitNoInit), storage.QuitNoInit},
		"initialize was cancelled": {someone, ended(storage.QuitCanceled), storage.QuitCanceled},
		"expired":                  {someone, withState(t, store, func(s *storage.Session) { s.Expires = time.Now().Add(-time.Second) }), storage.QuitExpired},
		"somebody else's":          {other, id, storage.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.Resume(t.Context(), c.caller, c.id, "1")
			var told *storage.Error
			if !errors.Is(err, storage.NotFound) || !errors.Is(err, c.why) || !errors.As(err, &told) || told.Message != "there is no such session; send initialize to open one" {
				t.Errorf("%v, want it because of %v", err, c.why)
			}
		})
	}
}

// withState stores another session, after f has changed its fields.
func withState(t *testing.T, store storage.Store, f func(*storage.Session)) storage.ID {
	t.Helper()
	now := time.Now()
	s := storage.Session{
		ID: storage.NewID(), Server: "s", Tenant: "t", Principal: "p", Transport: storage.HTTP, State: storage.Ready,
		Pushes: true, Created: now, Used: now, Expires: now.Add(time.Hour),
	}
	f(&s)
	commontest.OK(t, store.Create(t.Context(), s))
	return s.ID
}

func TestAnOperatorEndsASession(t *testing.T) {
	h, store, id := listening(t)
	for range 2 {
		commontest.OK(t, h.Terminate(t.Context(), id))
	}
	if s := record(t, store, id); s.State != storage.Ended || s.Quit != storage.QuitService {
		t.Errorf("state %q, quit %q", s.State, s.Quit)
	}
	commontest.EqualIn(t, "a session that is not there", storage.NotFound, storage.CodeOf(h.Terminate(t.Context(), storage.NewID())))
}

func TestAGivenSessionIsOfItsNewPrincipal(t *testing.T) {
	store := storagetest.NewMemory()
	h := sessions.New(store, nobody{}, sessions.Limits{})
	expires := time.Now().Add(time.Hour)
	const id = storage.ID("group")
	for _, s := range []storage.Session{
		{ID: id, Server: "g", Members: []string{"a", "gone"}},
		{ID: sessions.MemberID(id, "a"), Server: "a", Group: id, Props: []byte("of ada")},
		{ID: "modern", Server: "a", Transport: storage.Modern},
		{ID: "ended", Server: "a", State: storage.Ended},
	} {
		s.Tenant, s.Principal, s.Expires = "t", "ada", expires
		if s.State == "" {
			s.State = storage.Ready
		}
		if s.Transport == "" {
			s.Transport = storage.HTTP
		}
		commontest.OK(t, store.Create(t.Context(), s))
	}
	given, err := h.Give(t.Context(), id, "bob")
	if err != nil || len(given) != 2 || given[1].Server != "a" {
		t.Fatal(given, err)
	}
	for who, want := range map[string]error{"bob": nil, "ada": storage.NotFound} {
		for of, server := range map[storage.ID]string{id: "g", sessions.MemberID(id, "a"): "a"} {
			c := sessions.Caller{Server: sessions.Server{Name: server}, Tenant: "t", Principal: who, Transport: storage.HTTP}
			s, _, err := h.Load(t.Context(), c, of)
			if !errors.Is(err, want) || err == nil && s.Props != nil {
				t.Errorf("%s of %s: %v", of, who, err)
			}
		}
	}
	for _, test := range []struct {
		id   storage.ID
		to   string
		want error
	}{{"modern", "bob", storage.Invalid}, {"ended", "bob", storage.NotFound}, {"none", "bob", storage.NotFound}, {id, "", storage.Invalid}, {id, "a\nb", storage.Invalid}} {
		if _, err := h.Give(t.Context(), test.id, test.to); !errors.Is(err, test.want) {
			t.Errorf("%s to %q: %v", test.id, test.to, err)
		}
	}
}

func TestServerThatIsBeingPreparedAnswersAtOnce(t *testing.T) {
	l, since := newLister(t), time.Now()
	c := httpCaller()
	c.Server.Preparing = true
	begun := func(version string) (storage.ID, string) {
		s, call, err := l.Initialize(t.Context(), c, "", parsed(t, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+version+`","capabilities":{},"clientInfo":{"name":"c"}}}`))
		commontest.OK(t, err)
		events, err := call.Next(t.Context(), time.Now())
		if err != nil || len(events) != 1 || !s.Pushes {
			t.Fatal(events, err, s.Pushes)
		}
		return s.ID, string(events[0].Raw)
	}
	id, said := begun("2025-11-25")
	commontest.Contains(t, "initialize is answered with", `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"listChanged":true}},"serverInfo":{"name":"`+c.Server.Name+`","version":""}}`, said)
	if _, said := begun("2024-11-05"); !strings.Contains(said, `"protocolVersion":"2024-11-05"`) {
		t.Errorf("an old client gets %s", said)
	}
	for method, key := range map[string]string{"tools/list": "tools", "prompts/list": "prompts", "resources/list": "resources", "resources/templates/list": "resourceTemplates"} {
		got, d := l.ask(t, c, id, `{"jsonrpc":"2.0","id":7,"method":"`+method+`"}`)
		if d != nil || got != `{"jsonrpc":"2.0","id":7,"result":{"`+key+`":[]}}` {
			t.Errorf("%s: %s, delivered: %v", method, got, d != nil)
		}
	}
	if _, d := l.ask(t, c, id, `{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"a"}}`); d == nil {
		t.Error("a call is not delivered")
	}

	c.Server.Preparing = false
	commontest.OK(t, l.Prepared(t.Context(), c.Server.Name, since))
	call, err := l.Listen(t.Context(), c, id, "")
	commontest.OK(t, err)
	events, err := call.Next(t.Context(), time.Now())
	if err != nil || len(events) != 3 || !strings.Contains(string(events[0].Raw), wire.NotifyToolsChanged) {
		t.Errorf("the client hears %v, %v", events, err)
	}
	if _, d := l.ask(t, c, id, askTools); d == nil {
		t.Error("the list after that does not come from the server")
	}
	commontest.OK(t, l.Prepared(t.Context(), c.Server.Name, time.Now().Add(time.Hour)))
	if tail, err := l.store.Tail(t.Context(), id, storage.Standalone); err != nil || tail.Last != 3 {
		t.Errorf("an older session hears of it: %+v, %v", tail, err)
	}
}

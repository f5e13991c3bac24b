package sessions_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

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
	const id = storage.ID("group")
	member := sessions.MemberID(id, "a")
	for _, s := range []storage.Session{{ID: id, Server: "g", Members: []string{"a"}}, {ID: member, Server: "a", Group: id, Props: []byte("of ada")}} {
		s.Tenant, s.Principal, s.Transport, s.State, s.Expires = "t", "ada", storage.HTTP, storage.Ready, time.Now().Add(time.Hour)
		commontest.OK(t, store.Create(t.Context(), s))
	}
	_, err := sessions.New(store, nobody{}, sessions.Limits{}).Give(t.Context(), id, "bob")
	commontest.OK(t, err)
	for _, id := range []storage.ID{id, member} {
		if s := record(t, store, id); s.Principal != "bob" || s.Props != nil {
			t.Errorf("%s is of %s, with what is known of %s", id, s.Principal, s.Props)
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
}

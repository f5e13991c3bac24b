package sessions_test

import (
	"context"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// A session is put into a box when it is opened, and stays there.
func TestSessionIsPutIntoABoxThatIsNotFull(t *testing.T) {
	c := httpCaller()
	c.Server.Spreads = true
	fixed := c
	fixed.Server.Spreads = false
	for _, test := range []struct {
		what        string
		caller      sessions.Caller
		most        int
		want, reads int // reads to open a session
	}{
		{"two are allowed", c, 2, 1, 3},
		{"one is allowed", c, 1, 0, 2},
		{"no number is given", c, 0, 0, 2},
		{"sessions of the server share something", fixed, 2, 0, 2},
	} {
		l := newLister(t)
		l.Manager = l.With(sessions.Parts{Boxes: func(context.Context, string) int { return test.most }})
		box := storage.BoxFor(c.Tenant, c.Server.Name)
		if id := l.legacy(t, test.caller, `{}`); id.Box() != 0 {
			t.Errorf("%s: the first session is in box %d", test.what, id.Box())
		}
		first := storage.Box{ID: box, Tenant: c.Tenant, Server: c.Server.Name}.MarkFull(0, true)
		commontest.OK(t, l.store.SaveBox(t.Context(), first))
		l.store.Reset()
		id := l.legacy(t, test.caller, `{}`)
		if n := l.store.Counts(); id.Box() != test.want || n.Reads != test.reads {
			t.Errorf("%s: the second session is in box %d, which took %v", test.what, id.Box(), n.Calls)
		}
		if d := (*l.deliveries)[len(*l.deliveries)-1]; d.Box != box.Numbered(test.want) || d.Digest != storage.RecordIn(c.Tenant, c.Server.Digest, id) {
			t.Errorf("%s: its initialize goes to %s and is kept in %s", test.what, d.Box, d.Digest)
		}
		if err := l.store.SaveBox(t.Context(), storage.Box{ID: box, Rev: 1}); err != nil { // box 0 has room again
			t.Fatal(err)
		}
		l.store.Reset()
		_, d := l.ask(t, test.caller, id, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}}`)
		if d == nil || d.Box != box.Numbered(test.want) || d.Session != id {
			t.Errorf("%s: its call goes to %+v", test.what, d)
		}
		if n := l.store.Counts(); n.Reads != 1 {
			t.Errorf("%s: the call took %v", test.what, n.Calls)
		}
		socket, err := l.Open(t.Context(), test.caller)
		if err != nil || socket.ID.Box() != 0 {
			t.Errorf("%s: a session with a connection is in box %d, %v", test.what, socket.ID.Box(), err)
		}
	}
}

// What is forgotten of a server is forgotten of all its boxes.
func TestForgetReachesEachBox(t *testing.T) {
	l := newLister(t)
	c := httpCaller()
	c.Server.Spreads, c.Server.SameLists = true, true
	l.Manager = l.With(sessions.Parts{Boxes: func(context.Context, string) int { return 3 }})
	box := storage.BoxFor(c.Tenant, c.Server.Name)
	var all []storage.ID
	for n := range 3 {
		id := l.legacy(t, c, `{}`)
		if id.Box() != n {
			t.Fatalf("session %d is in box %d", n, id.Box())
		}
		all = append(all, id)
		_, d := l.ask(t, c, id, askTools)
		l.answers(t, d, `"result":`+toolList)
		b := storage.Box{ID: box.Numbered(n), Tenant: c.Tenant, Server: c.Server.Name, Gen: 1}
		commontest.OK(t, l.store.SaveBox(t.Context(), b))
		first, err := l.store.Box(t.Context(), box)
		if err == nil {
			err = l.store.SaveBox(t.Context(), first.MarkFull(n, true))
		}
		commontest.OK(t, err)
	}
	for n, id := range all {
		if kept, _ := l.ask(t, c, id, askTools); kept == "" {
			t.Errorf("box %d has no list", n)
		}
	}
	commontest.OK(t, sessions.Forget(t.Context(), l.store, c.Tenant, c.Server.Name, c.Server.Digest))
	for n, id := range all {
		if kept, _ := l.ask(t, c, id, askTools); kept != "" {
			t.Errorf("box %d still has the list", n)
		}
	}
}

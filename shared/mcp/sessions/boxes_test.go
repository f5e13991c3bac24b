package sessions_test

import (
	"context"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

func TestSessionIsPutIntoABoxThatIsNotFull(t *testing.T) {
	for name, test := range map[string]struct {
		most    int
		spreads bool
		want    int
	}{
		"two are allowed":                        {2, true, 1},
		"one is allowed":                         {1, true, 0},
		"no number is given":                     {0, true, 0},
		"sessions of the server share something": {2, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l, c := newLister(t), httpCaller()
			c.Server.Spreads = test.spreads
			l.Manager = l.With(sessions.Parts{Boxes: func(context.Context, string) int { return test.most }})
			box := storage.BoxFor(c.Tenant, c.Server.Name)
			commontest.EqualIn(t, "the first session is in box", 0, l.legacy(t, c, `{}`).Box())
			commontest.OK(t, l.store.SaveBox(t.Context(), storage.Box{ID: box, Tenant: c.Tenant, Server: c.Server.Name}.MarkFull(0, true)))
			id := l.legacy(t, c, `{}`)
			d := (*l.deliveries)[len(*l.deliveries)-1]
			if id.Box() != test.want || d.Box != box.Numbered(test.want) || d.Digest != storage.RecordIn(c.Tenant, c.Server.Digest, id) {
				t.Errorf("the second session is in box %d; its initialize goes to %s and is kept in %s", id.Box(), d.Box, d.Digest)
			}
			commontest.OK(t, l.store.SaveBox(t.Context(), storage.Box{ID: box, Rev: 1})) // box 0 has room again
			if _, d := l.ask(t, c, id, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}}`); d == nil || d.Box != box.Numbered(test.want) || d.Session != id {
				t.Errorf("its call goes to %+v", d)
			}
		})
	}
}

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

package front_test

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/sqlitestore"
)

// TestNothingButTheStoreIsNeeded serves each request by a new host, a new handler and a
// new connection to the store. The side of the server has a host of its own too.
func TestNothingButTheStoreIsNeeded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sessions.db")
	open := func() session.Store {
		store, err := sqlitestore.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		})
		return store
	}
	w := newWorld(t)
	w.backend.store = open()
	cold := func(f func() *answer) *answer {
		w.store.Store = open()
		return f()
	}
	proceed := make(chan struct{})
	w.backend.tool("steps", func(r run) {
		r.say("one")
		<-proceed
		r.say("two")
		r.end(`{}`)
	})
	w.limits.Hold = 1 // the client is sent away at once, and returns

	var c *client
	cold(func() *answer { c = w.open("quiet"); return nil })
	first := cold(func() *answer { return c.call("steps") })
	if diff := cmp.Diff([]string{said("one")}, first.datas(t)); diff != "" {
		t.Fatal(diff)
	}
	close(proceed)
	var rest []string
	for last := first.lastID(t); len(rest) < 2; {
		a := cold(func() *answer { return c.get(last) })
		rest, last = append(rest, a.datas(t)...), a.lastID(t)
	}
	if diff := cmp.Diff([]string{said("two"), `{"jsonrpc":"2.0","id":1,"result":{}}`}, rest); diff != "" {
		t.Error(diff)
	}
	if a := cold(func() *answer { return w.do(c.request("DELETE", "")) }); a.status != 204 {
		t.Errorf("got %d %s", a.status, a.body)
	}
	if a := cold(func() *answer { return c.call("x") }); a.status != 404 {
		t.Errorf("got %d %s", a.status, a.body)
	}
}

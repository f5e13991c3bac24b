package box

import (
	"strconv"
	"testing"
)

// A session may move to another definition of its server. Its client then gets, once, a
// list_changed for each list whose changes the server announces.
func TestClientOfASessionThatMovedHearsThatListsHaveChanged(t *testing.T) {
	t.Parallel()
	for how, want := range map[string][]string{"announces": {"tools", "resources"}, "normal": nil} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, how)
			for i, moved := range []bool{true, false} {
				id := strconv.Itoa(i)
				r.Deliver(Delivery{ID: id, Session: "s", Redefined: moved, Raw: []byte(`{"jsonrpc":"2.0","id":` + id + `,"method":"ping"}`)})
				r.result(id)
			}
			// The process runs, so the client of this session gets the notifications at
			// once.
			r.Deliver(Delivery{ID: "2", Session: "s", Redefined: true, Raw: []byte(`{"jsonrpc":"2.0","id":2,"method":"ping"}`)})
			r.result("2")
			for range 2 {
				for _, kind := range want {
					if e := r.event(t, ""); string(e.Raw) != `{"jsonrpc":"2.0","method":"notifications/`+kind+`/list_changed"}` {
						t.Errorf("the standalone stream has %s", e.Raw)
					}
				}
			}
			r.none(t, "")
		})
	}
}

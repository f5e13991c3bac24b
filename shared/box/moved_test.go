package box

import (
	"strconv"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// A session may move to another definition of its server. Its client then gets, once, a
// list_changed for each list whose changes the server announces, and for tools that are held.
func TestClientOfASessionThatMovedHearsThatListsHaveChanged(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		how  string
		held bool
		want []string
	}{
		"announces":       {"announces", false, []string{"tools", "resources"}},
		"announces, held": {"announces", true, []string{"tools", "resources"}},
		"normal":          {"normal", false, nil},
		"normal, held":    {"normal", true, []string{"tools"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, tt.how)
			for i, moved := range []bool{true, false} {
				id := strconv.Itoa(i)
				r.Deliver(Delivery{ID: storage.StreamID(id), Session: "s", Moved: moved, Held: tt.held, Raw: []byte(`{"jsonrpc":"2.0","id":` + id + `,"method":"ping"}`)})
				r.result(id)
			}
			// The process runs, so the client of this session gets the notifications at
			// once.
			r.Deliver(Delivery{ID: "2", Session: "s", Moved: true, Held: tt.held, Raw: []byte(`{"jsonrpc":"2.0","id":2,"method":"ping"}`)})
			r.result("2")
			for range 2 {
				for _, kind := range tt.want {
					if e := r.event(t, ""); string(e.Raw) != `{"jsonrpc":"2.0","method":"notifications/`+kind+`/list_changed"}` {
						t.Errorf("the standalone stream has %s", e.Raw)
					}
				}
			}
			r.none(t, "")
		})
	}
}

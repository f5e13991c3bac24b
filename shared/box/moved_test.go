package box

import (
	"fmt"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// A session may move to another definition of its server. Its client then gets, once, a
// list_changed for each list whose changes the server announces, and for tools that are held.
func TestClientOfASessionThatMovedHearsThatListsHaveChanged(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		how  string
		held bool
		want []string
	}{
		"announces":    {"announces", true, []string{"tools", "resources"}},
		"normal":       {"normal", false, nil},
		"normal, held": {"normal", true, []string{"tools"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tt.how)
			for i, moved := range []bool{true, false, true} { // at the last one the process runs already
				r.result(r.as("s", fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"ping"}`, i), func(d *Delivery) { d.Moved, d.Held = moved, tt.held }))
			}
			for range 2 {
				for _, kind := range tt.want {
					commontest.EqualIn(t, "the standalone stream", `{"jsonrpc":"2.0","method":"notifications/`+kind+`/list_changed"}`, string(r.event(t, "").Raw))
				}
			}
			r.none(t, "")
		})
	}
}

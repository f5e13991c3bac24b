package host_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/session"
	"github.com/dormouse-mcp/dormouse/shared/mcp/host"
	"github.com/dormouse-mcp/dormouse/shared/store/sessiontest"
)

// Recall leaves out log messages and old progress: a call may have sent more events than
// a function has memory for.
func TestRecalledCallIsWhatHasBecomeOfIt(t *testing.T) {
	store := sessiontest.NewMemory()
	h := host.New(store, newTook(), host.Limits{})
	call, _ := send(t, h, modernCaller, modernClient)
	question, end := `{"jsonrpc":"2.0","id":"q","method":"roots/list"}`, `{"jsonrpc":"2.0","id":"x","result":{}}`
	progress := func(i int) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":%d}}`, i)
	}
	said := []string{question}
	for i := range 1500 {
		said = append(said, progress(i), `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}`)
	}
	taken := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q"}}`
	said = append(said, taken, end)
	for i, raw := range said {
		b := session.Batch{
			Session: host.PinnedID(modernCaller), Stream: call.Stream(), First: session.Index(i + 1), Events: [][]byte{[]byte(raw)}, Final: raw == end,
		}
		if err := store.Append(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	r, err := h.Recall(t.Context(), modernCaller, call.Stream())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range r.Events {
		got = append(got, string(e.Raw))
	}
	// The log is bounded, so the question may be gone when the call has ended.
	want := []string{progress(1499), taken, end}
	if !r.Gap {
		want = append([]string{question}, want...)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if last := session.Index(len(said)); r.Last() != last || !r.Ended() {
		t.Errorf("the last is %d, want %d, and it has ended: %t", r.Last(), last, r.Ended())
	}
}

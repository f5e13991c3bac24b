package sessions_test

import (
	"fmt"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// Recall leaves out log messages and old progress: a call may have sent more events than
// a function has memory for.
func TestRecalledCallIsWhatHasBecomeOfIt(t *testing.T) {
	store := storagetest.NewMemory()
	h := sessions.New(store, newTook(), sessions.Limits{})
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
		b := storage.Batch{
			Session: sessions.PinnedID(modernCaller), Stream: call.Stream(), First: storage.Index(i + 1), Events: [][]byte{[]byte(raw)}, Final: raw == end,
		}
		commontest.OK(t, store.Append(t.Context(), b))
	}
	r, err := h.Recall(t.Context(), modernCaller, call.Stream())
	commontest.OK(t, err)
	var got []string
	for _, e := range r.Events {
		got = append(got, string(e.Raw))
	}
	// The log is bounded, so the question may be gone when the call has ended.
	want := []string{progress(1499), taken, end}
	if !r.Gap {
		want = append([]string{question}, want...)
	}
	commontest.Same(t, want, got)
	if last := storage.Index(len(said)); r.Last() != last || !r.Ended() {
		t.Errorf("the last is %d, want %d, and it has ended: %t", r.Last(), last, r.Ended())
	}
}

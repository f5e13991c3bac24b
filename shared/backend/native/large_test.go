package native

import (
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// If no client waits in this function, the function does not keep the events in memory.
func TestWhatNobodyWatchesIsNotKept(t *testing.T) {
	r := newShown()
	much := make([]byte, mostBytes)
	for i := range storage.Index(5) {
		r.publish(storage.Batch{First: i + 1, Events: [][]byte{much}})
	}
	size := 0
	for _, e := range r.tail {
		size += len(e.Raw)
	}
	if size > mostKept {
		t.Errorf("%d bytes are kept, want at most %d", size, mostKept)
	}
	if _, ok, _ := r.behind(0); ok {
		t.Error("what is not kept is told to be all there is")
	}
	if page, ok, _ := r.behind(4); ok && len(page.Events) != 1 {
		t.Errorf("behind the last but one there are %d events", len(page.Events))
	}
}

func TestWhatIsTooLargeForTheLogDoesNotTakeItsCallWithIt(t *testing.T) {
	r := &run{k: NewBackend(Config{}), ctx: t.Context(), in: &environment{}, said: newOutbox()}
	much := []byte(`{"message":"` + strings.Repeat("x", storage.MaxBatchBytes) + `"}`)
	r.say(wire.NewNotification(wire.NotifyProgress, much))
	r.say(wire.ResultResponse([]byte(`"a"`), much))
	r.say(wire.ResultResponse([]byte(`2`), []byte(`{}`)))
	want := []string{
		`{"jsonrpc":"2.0","id":"a","error":{"code":-32603,"message":"tool_call: the answer is too large for the log","data":{"phase":"tool_call"}}}`,
		`{"jsonrpc":"2.0","id":2,"result":{}}`,
	}
	var got []string
	for _, raw := range r.said.drain(true) {
		got = append(got, string(raw))
	}
	commontest.Same(t, want, got)
}

package native

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

func TestWhatIsTooLargeForTheLogDoesNotTakeItsCallWithIt(t *testing.T) {
	r := &run{k: NewBackend(Config{}), ctx: t.Context(), in: &inside{}, news: make(chan struct{}, 1)}
	much := []byte(`{"message":"` + strings.Repeat("x", session.MaxBatchBytes) + `"}`)
	r.say(wire.NewNotification(wire.NotifyProgress, much))
	r.say(wire.ResultResponse([]byte(`"a"`), much))
	r.say(wire.ResultResponse([]byte(`2`), []byte(`{}`)))
	want := []string{
		`{"jsonrpc":"2.0","id":"a","error":{"code":-32603,"message":"tool_call: the answer is larger than the log takes","data":{"phase":"tool_call"}}}`,
		`{"jsonrpc":"2.0","id":2,"result":{}}`,
	}
	var got []string
	for _, raw := range r.drain(true) {
		got = append(got, string(raw))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

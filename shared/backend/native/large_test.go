package native

import (
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func TestWhatIsTooLargeForTheLogDoesNotTakeItsCallWithIt(t *testing.T) {
	r := &run{k: NewBackend(Config{}), ctx: t.Context(), in: &environment{record: storage.Session{Server: "big"}}, said: newOutbox()}
	much := []byte(`{"message":"` + strings.Repeat("x", storage.MaxBatchBytes) + `"}`)
	r.say(wire.NewNotification(wire.NotifyProgress, much))
	r.say(wire.ResultResponse([]byte(`"a"`), much))
	r.say(wire.ResultResponse([]byte(`2`), []byte(`{}`)))
	want := []string{
		`{"jsonrpc":"2.0","id":"a","error":{"code":-32603,"message":"server \"big\": the answer has 16777266 bytes, over the limit of 16777216","data":{"phase":"tool_call","server":"big"}}}`,
		`{"jsonrpc":"2.0","id":2,"result":{}}`,
	}
	var got []string
	for _, raw := range r.said.drain(true) {
		got = append(got, string(raw))
	}
	commontest.Same(t, want, got)
}

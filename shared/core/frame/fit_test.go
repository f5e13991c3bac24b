package frame_test

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Nothing follows the event that ends a stream, so only the last error may be it.
func TestEachRequestOfABatchThatAsksTooOftenGetsAnError(t *testing.T) {
	fit, _ := frame.Fit(frame.Event{Stream: "d", Raw: []byte(`{}`), Asks: &frame.Suspension{
		Questions: []storage.Question{{ID: "q"}},
		Raw:       []byte(`[{"jsonrpc":"2.0","id":1,"method":"tools/call"},{"jsonrpc":"2.0","id":2,"method":"tools/call"}]`),
	}}, storage.MaxRounds)
	ended := map[string]bool{}
	for _, e := range fit {
		ended[string(wire.Lookup(e.Raw, "id"))] = e.Final
	}
	commontest.Same(t, map[string]bool{"1": false, "2": true}, ended)
}

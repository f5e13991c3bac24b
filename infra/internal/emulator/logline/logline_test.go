package logline_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/logline"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestALineIsTheEventThatWroteIt(t *testing.T) {
	wrote := &observe.Event{
		Kind: observe.Request, Trace: "t", Refused: true, Caller: &observe.Caller{Key: "k7"}, RPCMethod: "tools/call",
		Account: storage.Account{Server: "mine", Tenant: "acme", Session: "s1", Took: 5 * time.Millisecond, Code: storage.Busy},
		Spent:   &storage.Spent{Units: storage.Units{Requests: 2, ReadUnits: 1.5}},
		Ended:   []observe.Ended{{Stream: "1", Why: "no"}}, Traces: []string{"t"},
	}
	var line strings.Builder
	observe.Log(slog.New(slog.NewJSONHandler(&line, nil)))(t.Context(), wrote)
	read, ok := logline.Parse(line.String())
	if d := cmp.Diff(wrote, read); !ok || d != "" {
		t.Errorf("event of %s (-wrote +read):\n%s", line.String(), d)
	}
}

func TestALineThatIsNoEventIsRefused(t *testing.T) {
	for _, line := range []string{"", "panic: no", `["msg"]`, `{"msg":7}`, `{"server":"one"}`, `{"msg":"request"`} {
		if e, ok := logline.Parse(line); ok {
			t.Errorf("%q is %v", line, e)
		}
	}
}

package remote_test

import (
	"context"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// pay is what docs/safe-calls.md says of the Go SDK.
func pay(ctx context.Context, session *mcp.ClientSession, key string, arguments any) (*mcp.CallToolResult, error) {
	params := &mcp.CallToolParams{Name: "pay", Arguments: arguments, Meta: mcp.Meta{"io.modelcontextprotocol/idempotencyKey": key}}
	result, err := session.CallTool(ctx, params) // again with the same params, until there is an answer
	return result, err
}

func TestTheGoClientOfThePageCallsOnce(t *testing.T) {
	page, err := os.ReadFile("../../../docs/safe-calls.md")
	commontest.OK(t, err)
	source, err := os.ReadFile("once_test.go")
	commontest.OK(t, err)
	_, rest, _ := strings.Cut(string(page), "```go\n")
	block, _, _ := strings.Cut(rest, "```")
	lines := strings.Split(strings.ReplaceAll(string(source), "\t", ""), "\n")
	for line := range strings.Lines(block) {
		if !slices.Contains(lines, strings.TrimSpace(line)) {
			t.Errorf("the page has %q, which is not tested", line)
		}
	}
	onEachStore(t, func(t *testing.T, store storage.Store) {
		var paid atomic.Int64
		server := mcp.NewServer(&mcp.Implementation{Name: "far", Version: "1"}, nil)
		mcp.AddTool(server, &mcp.Tool{Name: "pay"}, func(context.Context, *mcp.CallToolRequest, map[string]any) (*mcp.CallToolResult, any, error) {
			return nil, map[string]any{"n": paid.Add(1)}, nil
		})
		w := newWorld(t, store, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
		for range 3 {
			s := w.connect(mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, nil))
			if got, err := pay(t.Context(), s, "k", map[string]any{"amount": 20}); err != nil || got.IsError || paid.Load() != 1 {
				t.Errorf("executed %d times, answered with %+v, %v", paid.Load(), got, err)
			}
		}
		commontest.EqualIn(t, "the page has no block of Go", false, block == "")
	})
}

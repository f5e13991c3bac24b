package dormouse

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// The SDK only says that the transport has rejected a request.
func TestCallSaysWhyTheEndpointRefuses(t *testing.T) {
	t.Parallel()
	const reason = `server "one" is not served: it is off`
	for _, test := range []struct {
		name, body, want string
		status           int
	}{
		{"endpoint", `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"server \"one\" is not served: it is off"}}`, reason, 503},
		{"reverse proxy", "<html>", "/one/mcp answers 502 Bad Gateway: is it a dormouse of this version?", 502},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := mcp.NewServer(&mcp.Implementation{Name: "one", Version: "1"}, nil)
			serve := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
			var off atomic.Bool
			at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if off.Load() {
					w.WriteHeader(test.status)
					_, _ = w.Write([]byte(test.body))
					return
				}
				serve.ServeHTTP(w, r)
			}))
			defer at.Close()
			s, err := (&client{base: at.URL}).connect(t.Context(), "one")
			commontest.OK(t, err)
			defer func() { _ = s.Close() }()
			off.Store(true)
			c := &callCommand{Server: "one", Tool: "echo"}
			if _, err := c.find(t.Context(), s); err == nil || !strings.HasPrefix(err.Error(), "one echo: ") || !strings.HasSuffix(err.Error(), test.want) || strings.Contains(err.Error(), "rejected") {
				t.Errorf("the list before the call says %v, want %s", err, test.want)
			}
			_, err = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo"})
			if err = plainly("one", err); err == nil || !strings.HasSuffix(err.Error(), test.want) {
				t.Errorf("the call says %v, want %s", err, test.want)
			}
		})
	}
}

// A call that runs already is waited for, with the same key.
func TestCallOnceWaitsForTheCallThatHasItsKey(t *testing.T) {
	t.Parallel()
	server := mcp.NewServer(&mcp.Implementation{Name: "one", Version: "1"}, nil)
	var keys []any
	server.AddTool(&mcp.Tool{Name: "pay", InputSchema: map[string]any{"type": "object"}}, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if keys = append(keys, r.Params.Meta[wire.MetaIdempotencyKey]); len(keys) < 3 {
			return nil, &jsonrpc.Error{Code: int64(wire.CodeInvalidParams), Message: "it runs", Data: []byte(`{"type":"` + sessions.KeyInUse + `"}`)}
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "paid"}}}, nil
	})
	at := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	defer at.Close()
	to := &client{base: at.URL}
	s, err := to.connect(t.Context(), "one")
	commontest.OK(t, err)
	defer func() { _ = s.Close() }()
	result, err := to.callTool(t.Context(), s, "pay", "k", map[string]any{}, nil)
	if err != nil || result.Content[0].(*mcp.TextContent).Text != "paid" || !slices.Equal(keys, []any{"k", "k", "k"}) {
		t.Errorf("got %v, %v after the keys %v", result, err, keys)
	}
}

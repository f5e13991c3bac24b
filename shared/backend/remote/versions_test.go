package remote_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/backend/remote"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// demo makes the upstream's server, one for each session there.
func demo(*http.Request) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "demo", Version: "1"}, &mcp.ServerOptions{Instructions: "count"})
	var mu sync.Mutex
	n := 0
	none := map[string]any{"type": "object"}
	add := func(name string, h mcp.ToolHandler) { s.AddTool(&mcp.Tool{Name: name, InputSchema: none}, h) }
	add("count", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		mu.Lock()
		defer mu.Unlock()
		n++
		return said("%d", n), nil
	})
	add("ask", func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var answers []string
		for _, field := range []string{"name", "city"} {
			a, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: field, RequestedSchema: map[string]any{
				"type": "object", "properties": map[string]any{field: map[string]any{"type": "string"}},
			}})
			if err != nil {
				return nil, err
			}
			answers = append(answers, fmt.Sprint(a.Content[field]))
		}
		return said("%s", strings.Join(answers, ", ")), nil
	})
	add("progress", func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		for i := range 3 {
			_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: float64(i + 1)})
		}
		return said("done"), nil
	})
	return s
}

func said(format string, args ...any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
}

// speaking makes a go-sdk server answer initialize with an older version.
func speaking(version string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if bytes.Contains(body, []byte(`"initialize"`)) {
			body = bytes.ReplaceAll(body, []byte("2025-11-25"), []byte(version))
		}
		if bytes.Contains(body, []byte(`"server/discover"`)) {
			http.Error(w, "Bad Request: no such method", http.StatusBadRequest)
			return
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		next.ServeHTTP(w, r)
	})
}

func upstreams() map[string]http.Handler {
	all := map[string]http.Handler{
		"2026-07-28": mcp.NewStreamableHTTPHandler(demo, &mcp.StreamableHTTPOptions{Stateless: true}),
		"2024-11-05": speaking("2024-11-05", mcp.NewSSEHandler(demo, nil)),
	}
	for _, version := range []string{"2025-03-26", "2025-06-18", "2025-11-25"} {
		all[version] = speaking(version, mcp.NewStreamableHTTPHandler(demo, &mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil)}))
		all[version+" without event ids"] = speaking(version, mcp.NewStreamableHTTPHandler(demo, nil))
		all[version+" with JSON answers"] = speaking(version, mcp.NewStreamableHTTPHandler(demo, &mcp.StreamableHTTPOptions{JSONResponse: true}))
	}
	return all
}

func text(t *testing.T, r *mcp.CallToolResult, err error) string {
	t.Helper()
	commontest.OK(t, err)
	return r.Content[0].(*mcp.TextContent).Text
}

func TestServersOfEveryVersionAreReached(t *testing.T) {
	for version, upstream := range upstreams() {
		t.Run(version, func(t *testing.T) {
			w := newWorld(t, storagetest.NewMemory(), upstream)
			c := plain(w)
			commontest.EqualIn(t, "instructions", "count", c.InitializeResult().Instructions)
			tools, err := c.ListTools(t.Context(), nil)
			if err != nil || len(tools.Tools) != 3 {
				t.Fatalf("tools: %v, %v", tools, err)
			}
			keeps := !strings.HasPrefix(version, "2024") && !strings.HasPrefix(version, "2026")
			for _, want := range []string{"1", "2"} {
				if got := call(t, c, "count"); keeps {
					commontest.EqualIn(t, "calls in the session at the upstream", want, got)
				}
			}
			p := &mcp.CallToolParams{Name: "progress", Arguments: map[string]any{}}
			p.SetProgressToken("p1")
			r, err := c.CallTool(t.Context(), p)
			commontest.EqualIn(t, "progress", "done", text(t, r, err))
			_, err = c.CallTool(t.Context(), &mcp.CallToolParams{Name: "nothing"})
			commontest.Contains(t, "an unknown tool", "nothing", fmt.Sprint(err))
		})
	}
}

func TestServerAsksItsClientOverEveryTransport(t *testing.T) {
	for version, upstream := range upstreams() {
		if strings.Contains(version, "JSON") || version == "2026-07-28" { // such servers cannot ask
			continue
		}
		t.Run(version, func(t *testing.T) {
			w := newWorld(t, storagetest.NewMemory(), upstream)
			if version == "2024-11-05" || strings.Contains(version, "without") {
				w.warm = remote.New() // the question keeps the stream open, in this process
			}
			commontest.Equal(t, "my name, my city", call(t, newPerson().joins(w, "2025-11-25", false), "ask"))
		})
	}
}

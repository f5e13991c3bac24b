package native_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// BenchmarkRebuilt compares a tools/call here with one of go-sdk's own handler. Here the
// server is made anew for each message; go-sdk's handler keeps servers and sessions in its
// memory. Here they are kept in SQLite. A third variant keeps them in memory, to show the
// store's share. The three take turns, in process, over the same requests. The benchmark
// reports the median of each, and the ratio of each to go-sdk's. Run it with `make
// bench-native`.
func BenchmarkRebuilt(b *testing.B) {
	store, err := sqlitestore.Open(filepath.Join(b.TempDir(), "store.db"))
	commontest.OK(b, err)
	b.Cleanup(func() { _ = store.Close() })
	rebuilt := func(store storage.Store) http.Handler {
		w := newWorld(b, func() storage.Store { return store })
		w.hosted.Make = bench
		return native.Handler(transport.New(w.options()))
	}
	handlers := []http.Handler{
		rebuilt(store), rebuilt(storagetest.NewMemory()),
		mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return benchServer(nil) },
			&mcp.StreamableHTTPOptions{Logger: slog.New(slog.DiscardHandler)}),
	}
	ids := make([]string, len(handlers))
	for i, h := range handlers {
		ids[i] = opened(b, h)
		for range 200 { // warm
			callOn(b, h, ids[i])
		}
	}
	took := make([][]time.Duration, len(handlers))
	for b.Loop() {
		for i, h := range handlers {
			begun := time.Now()
			callOn(b, h, ids[i])
			took[i] = append(took[i], time.Since(begun))
		}
	}
	p50 := func(i int) float64 {
		slices.Sort(took[i])
		return float64(took[i][len(took[i])/2]) / float64(time.Microsecond)
	}
	b.ReportMetric(p50(0), "sqlite-p50-µs")
	b.ReportMetric(p50(1), "memory-p50-µs")
	b.ReportMetric(p50(2), "resident-p50-µs")
	b.ReportMetric(p50(0)/p50(2), "sqlite-ratio")
	b.ReportMetric(p50(1)/p50(2), "memory-ratio")
}

// BenchmarkCall measures one tools/call of this package alone, for profiles.
func BenchmarkCall(b *testing.B) {
	w := newWorld(b, nil)
	store, err := sqlitestore.Open(filepath.Join(b.TempDir(), "store.db"))
	commontest.OK(b, err)
	b.Cleanup(func() { _ = store.Close() })
	w.open = func() storage.Store { return store }
	w.hosted.Make = bench
	h := native.Handler(transport.New(w.options()))
	id := opened(b, h)
	b.ReportAllocs()
	for b.Loop() {
		callOn(b, h, id)
	}
}

func bench(_ context.Context, s native.Session) (*mcp.Server, error) {
	return benchServer(s.Options()), nil
}

func benchServer(o *mcp.ServerOptions) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "bench", Version: "1"}, o)
	mcp.AddTool(server, &mcp.Tool{Name: "echo"}, func(_ context.Context, _ *mcp.CallToolRequest, in words) (*mcp.CallToolResult, any, error) {
		return text(in.Text), nil, nil
	})
	return server
}

func opened(b *testing.B, h http.Handler) (id string) {
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, request("POST", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"old","version":"1"}}}`))
	id = rec.Header().Get("Mcp-Session-Id")
	rec = httptest.NewRecorder()
	h.ServeHTTP(rec, request("POST", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "Mcp-Session-Id", id, "MCP-Protocol-Version", "2025-11-25"))
	if id == "" || rec.Code != http.StatusAccepted {
		b.Fatalf("no session: %d %s", rec.Code, rec.Body)
	}
	return id
}

func callOn(b *testing.B, h http.Handler, id string) {
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, request("POST", toolCall("7", "echo", `{"text":"hello"}`, ""), "Mcp-Session-Id", id, "MCP-Protocol-Version", "2025-11-25"))
	if !strings.Contains(rec.Body.String(), `"text":"hello"`) {
		b.Fatalf("got %d %s", rec.Code, rec.Body)
	}
}

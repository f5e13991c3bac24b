package native_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// BenchmarkRebuilt compares a tools/call here with one of go-sdk's own handler. Here the
// server is made anew for each message; go-sdk's handler keeps servers and sessions in its
// memory. Here they are kept in SQLite. A third variant keeps them in memory, to show the
// store's share. Run it with `make bench-native`.
func BenchmarkRebuilt(b *testing.B) {
	rebuilt := func(store storage.Store) http.Handler {
		w := newWorld(b, func() storage.Store { return store })
		w.hosted.Make = func(_ context.Context, s native.Session) (*mcp.Server, error) { return benchServer(s.Options()), nil }
		return native.Handler(transport.New(w.options()))
	}
	resident := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return benchServer(nil) },
		&mcp.StreamableHTTPOptions{Logger: slog.New(slog.DiscardHandler)})
	disk, err := sqlitestore.Open(filepath.Join(b.TempDir(), "store.db"))
	commontest.OK(b, err)
	defer func() { _ = disk.Close() }()
	handlers := []http.Handler{resident, rebuilt(disk), rebuilt(storagetest.NewMemory())}
	took := make([][]time.Duration, len(handlers))
	var ids []string
	for _, h := range handlers {
		ids = append(ids, opened(b, h))
	}
	for b.Loop() {
		for i, h := range handlers { // in turns
			rec, begun := httptest.NewRecorder(), time.Now()
			h.ServeHTTP(rec, request("POST", toolCall("7", "echo", `{"text":"hello"}`, ""), wire.HeaderSessionID, ids[i], wire.HeaderProtocolVersion, wire.V20251125))
			took[i] = append(took[i], time.Since(begun))
			commontest.Contains(b, "the answer", `"text":"hello"`, rec.Body.String())
		}
	}
	for i, name := range []string{"resident", "sqlite", "memory"} {
		slices.Sort(took[i])
		b.ReportMetric(float64(took[i][len(took[i])/2])/float64(time.Microsecond), name+"-p50-µs")
	}
}

func benchServer(o *mcp.ServerOptions) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "bench", Version: "1"}, o)
	tool(server, "echo", func(_ context.Context, _ *mcp.CallToolRequest, in words) (*mcp.CallToolResult, error) {
		return text(in.Text), nil
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

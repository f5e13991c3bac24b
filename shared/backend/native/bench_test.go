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
		w.hosted.Make = bench
		return native.Handler(transport.New(w.options()))
	}
	resident := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return benchServer(nil) },
		&mcp.StreamableHTTPOptions{Logger: slog.New(slog.DiscardHandler)})
	inTurns(b, []step{echoStep(b, "resident", resident), echoStep(b, "sqlite", rebuilt(onDisk(b))), echoStep(b, "memory", rebuilt(storagetest.NewMemory()))})
}

// step is a request whose answers are measured.
type step struct {
	name, want string
	h          http.Handler
	body       string
	headers    []string
}

// echoStep returns a call of a server that bench has made, in a session of its own.
func echoStep(b *testing.B, name string, h http.Handler) step {
	return step{name, `"text":"hello"`, h, toolCall("7", "echo", `{"text":"hello"}`, ""), []string{wire.HeaderSessionID, opened(b, h), wire.HeaderProtocolVersion, wire.V20251125}}
}

// inTurns measures requests, in process and in turns. It reports the median of each, and its
// ratio to that of the first.
func inTurns(b *testing.B, steps []step) {
	took := make([][]time.Duration, len(steps))
	turn := func() {
		for i, s := range steps {
			rec, begun := httptest.NewRecorder(), time.Now()
			s.h.ServeHTTP(rec, request("POST", s.body, s.headers...))
			took[i] = append(took[i], time.Since(begun))
			if !strings.Contains(rec.Body.String(), s.want) {
				b.Fatalf("%s: got %d %s", s.name, rec.Code, rec.Body)
			}
		}
	}
	for range 200 { // warm
		turn()
	}
	clear(took)
	for b.Loop() {
		turn()
	}
	first := 0.0
	for i, s := range steps {
		slices.Sort(took[i])
		p50 := float64(took[i][len(took[i])/2]) / float64(time.Microsecond)
		b.ReportMetric(p50, s.name+"-p50-µs")
		if i == 0 {
			first = p50
			continue
		}
		b.ReportMetric(p50/first, s.name+"-ratio")
	}
}

func onDisk(b *testing.B) storage.Store {
	store, err := sqlitestore.Open(filepath.Join(b.TempDir(), "store.db"))
	commontest.OK(b, err)
	b.Cleanup(func() { _ = store.Close() })
	return store
}

func bench(_ context.Context, s native.Session) (*mcp.Server, error) {
	return benchServer(s.Options()), nil
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

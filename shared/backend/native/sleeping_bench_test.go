package native_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

// BenchmarkSleeping compares two requests, in process, on SQLite, in turns. One goes to a
// sleeping stdio server and is answered from its handshake record. The other is a
// tools/call of a native server. The benchmark reports the median of each, and the ratio
// of the first to the second. It fails if the box gets a message. Run it with `make
// bench-native`.
func BenchmarkSleeping(b *testing.B) {
	store, err := sqlitestore.Open(filepath.Join(b.TempDir(), "store.db"))
	commontest.OK(b, err)
	b.Cleanup(func() { _ = store.Close() })
	w := newWorld(b, func() storage.Store { return store })
	w.hosted.Make = bench
	called := native.Handler(transport.New(w.options()))
	asleep := sleeping(b, w, store)
	id, mine := opened(b, called), opened(b, asleep)
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	steps := []struct {
		name, want string
		h          http.Handler
		body       string
		headers    []string
	}{
		{"call", `"text":"hello"`, called, toolCall("7", "echo", `{"text":"hello"}`, ""), []string{wire.HeaderSessionID, id, wire.HeaderProtocolVersion, wire.V20251125}},
		{"discover", `"supportedVersions"`, asleep, `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{` + meta + `}}`, []string{wire.HeaderProtocolVersion, wire.V20260728, wire.HeaderMethod, wire.MethodDiscover}},
		{"initialize", `"serverInfo"`, asleep, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"old","version":"1"}}}`, nil},
		{"list", `"inputSchema"`, asleep, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, []string{wire.HeaderSessionID, mine, wire.HeaderProtocolVersion, wire.V20251125}},
	}
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
	p50 := func(i int) float64 {
		slices.Sort(took[i])
		return float64(took[i][len(took[i])/2]) / float64(time.Microsecond)
	}
	for i, s := range steps {
		b.ReportMetric(p50(i), s.name+"-p50-µs")
		if i > 0 {
			b.ReportMetric(p50(i)/p50(0), s.name+"-ratio")
		}
	}
}

// sleeping serves a stdio server whose answers are all in its handshake record.
func sleeping(b *testing.B, w *world, store storage.Store) http.Handler {
	for part, result := range map[string]string{
		wire.V20251125: `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"bench","version":"1"}}`,
		wire.MethodToolsList + " " + wire.V20251125 + " ": `{"tools":[{"name":"echo","inputSchema":{"type":"object","properties":{"text":{"type":"string"}}}}]}`,
	} {
		commontest.OK(b, store.SaveHandshake(b.Context(), storage.Handshake{
			Digest: storage.RecordFor("acme", "d"), Version: part, Result: json.RawMessage(result), Taken: time.Now(), Expires: time.Now().Add(time.Hour),
		}))
	}
	o := w.options()
	o.Host = sessions.New(store, noBox{b: b}, sessions.Limits{})
	o.Servers = func(name string) (sessions.Server, bool) {
		return sessions.Server{Name: name, Digest: "d", Record: true}, true
	}
	return transport.New(o)
}

type noBox struct {
	sessions.Backend // nil: a call of any other method also ends the benchmark

	b *testing.B
}

func (n noBox) Deliver(_ context.Context, d sessions.Delivery, _ storage.Box) (sessions.Tracker, error) {
	n.b.Errorf("a box was asked: %s", d.Raw)
	return nil, storage.Errorf(storage.Unavailable, "it sleeps")
}

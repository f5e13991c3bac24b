package native_test

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// BenchmarkSleeping compares requests that a sleeping stdio server's handshake record answers
// with a tools/call of a native server. It fails if the box gets a message. Run it with `make
// bench-native`.
func BenchmarkSleeping(b *testing.B) {
	store := onDisk(b)
	w := newWorld(b, func() storage.Store { return store })
	w.hosted.Make = bench
	asleep := sleeping(b, w, store)
	mine := opened(b, asleep)
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	inTurns(b, []step{
		echoStep(b, "call", native.Handler(transport.New(w.options()))),
		{"discover", `"supportedVersions"`, asleep, `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{` + meta + `}}`, []string{wire.HeaderProtocolVersion, wire.V20260728, wire.HeaderMethod, wire.MethodDiscover}},
		{"initialize", `"serverInfo"`, asleep, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"old","version":"1"}}}`, nil},
		{"list", `"inputSchema"`, asleep, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, []string{wire.HeaderSessionID, mine, wire.HeaderProtocolVersion, wire.V20251125}},
	})
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

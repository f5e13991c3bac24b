package relay_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// caller is the client of counted, and handshake its server's answer to initialize.
var caller = sessions.Caller{
	Server: sessions.Server{Name: "s", Digest: "digest", Record: true}, Identity: storage.Identity{Tenant: "t", Principal: "p"}, Transport: storage.HTTP,
}

const handshake = `{"protocolVersion":"2025-11-25","capabilities":{"logging":{}}}`

const initializing = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`

const initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`

// onRecord stores the handshake record of a tenant's server.
func onRecord(t *testing.T, store storage.Store, tenant, result string) {
	t.Helper()
	commontest.OK(t, store.SaveHandshake(t.Context(), storage.Handshake{
		Digest: storage.RecordFor(tenant, "digest"), Version: wire.V20251125, Result: json.RawMessage(result),
	}))
}

func initialize(t *testing.T, h *sessions.Manager) storage.ID {
	t.Helper()
	s, call, err := h.Initialize(t.Context(), caller, "", parse(t, initializing))
	commontest.OK(t, err)
	finish(t, call)
	return s.ID
}

// finish waits for the end of a call, if there is one, and of what follows from it.
func finish(t *testing.T, call *sessions.Call) {
	t.Helper()
	for call != nil && !call.Done() {
		_, err := call.Next(t.Context(), time.Now().Add(time.Minute))
		commontest.OK(t, err)
	}
	synctest.Wait()
}

func parse(t *testing.T, raw string) wire.Message {
	t.Helper()
	m, err := wire.Parse([]byte(raw))
	commontest.OK(t, err)
	return m
}

package relay_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// tasked returns operations of a client of 2026-07-28 on a call that has become a task.
// They do what the endpoint does.
func tasked() []price {
	modern := caller
	modern.Transport = storage.Modern
	brief := sessions.Client{
		Init:  []byte(`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`),
		Check: func(json.RawMessage) (bool, error) { return true, nil },
	}
	var stream storage.StreamID
	begins := func(t *testing.T, c *counted, params string) {
		t.Helper()
		call, _, err := c.host.Send(t.Context(), modern, brief, "tools/call", []byte(params))
		commontest.OK(t, err)
		stream = call.Stream()
		if events, err := call.Next(t.Context(), time.Now().Add(250*time.Millisecond)); err != nil || len(events) > 0 {
			t.Fatalf("%d events, %v", len(events), err)
		}
	}
	called := func(t *testing.T, c *counted) storage.ID {
		id := working(t, c)
		record := storage.Handshake{Digest: storage.RecordFor("t", "digest"), Version: wire.V20251125, Result: json.RawMessage(`{"serverInfo":{"name":"s"}}`)}
		commontest.OK(t, c.store.SaveHandshake(t.Context(), record))
		begins(t, c, `{"sleep":1000}`) // the first of all costs more
		time.Sleep(time.Minute)
		return id
	}
	inFlight := func(t *testing.T, c *counted) storage.ID {
		id := called(t, c)
		begins(t, c, `{"sleep":60000}`)
		return id
	}
	asks := func(ended bool) func(*testing.T, *counted, storage.ID) {
		return func(t *testing.T, c *counted, _ storage.ID) {
			r, err := c.host.Recall(t.Context(), modern, stream)
			if err == nil && !r.Ended() {
				err = r.LookAfter(t.Context())
			}
			if err != nil || r.Lost || r.Ended() != ended {
				t.Errorf("got %+v, %v", r, err)
			}
		}
	}
	return []price{
		{
			name:  "2026-07-28: tools/call that becomes a task, until it is told",
			reads: 3, write: 1, waits: 1, requests: 4, readUnits: 4, writeUnits: 2, up: "taken", down: "deliver",
			operation: operation{called, func(t *testing.T, c *counted, _ storage.ID) {
				begins(t, c, `{"sleep":60000}`)
			}},
		},
		{
			name:  "tasks/get, in flight",
			reads: 3, requests: 3, readUnits: 3,
			operation: operation{inFlight, asks(false)},
		},
		{
			name:  "tasks/get, ended",
			reads: 2, requests: 2, readUnits: 3,
			operation: operation{called, asks(true)},
		},
		{
			name:  "tasks/cancel, in flight",
			reads: 1, requests: 1, readUnits: 2, down: "deliver",
			operation: operation{inFlight, func(t *testing.T, c *counted, _ storage.ID) {
				commontest.OK(t, c.host.Abandon(t.Context(), modern, stream, "the client cancelled the task"))
			}},
		},
	}
}

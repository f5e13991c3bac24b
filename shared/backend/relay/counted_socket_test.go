package relay_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// These tests measure what a WebSocket client gets for the cost of an operation. The
// function that takes a message also reads the record of its connection, if the process has
// not read it before.

// clientsOf counts what is posted to clients.
type clientsOf struct{ c *counted }

func (k clientsOf) Post(_ context.Context, conn string, _ []byte) error {
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	if strings.HasPrefix(conn, "gone") {
		return storage.Errorf(storage.Closed, "simulated: gone")
	}
	k.c.posted++
	return nil
}

func (clientsOf) Close(context.Context, string) error { return nil }

// overSocket opens a session over a connection and lets the box wake for it.
func (c *counted) overSocket(t *testing.T, conn string) (sessions.Caller, storage.ID) {
	t.Helper()
	caller, id := c.connect(t, conn, "")
	if _, _, err := c.host.Initialize(t.Context(), caller, id, parse(t, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)); err != nil {
		t.Fatal(err)
	}
	c.message(t, caller, id, initialized)
	c.message(t, caller, id, callWith(`{}`))
	time.Sleep(time.Minute) // a connection that is younger may still come up
	return caller, id
}

// message does with a message what the socket function does.
func (c *counted) message(t *testing.T, caller sessions.Caller, id storage.ID, raw string) {
	t.Helper()
	if _, err := c.host.Connection(t.Context(), caller.Conn); err != nil {
		t.Fatal(err)
	}
	call, err := c.host.Accept(t.Context(), caller, id, []wire.Message{parse(t, raw)}, false)
	if err == nil && call != nil {
		_, err = call.Next(t.Context(), time.Now())
	}
	commontest.OK(t, err)
}

package relay_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
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

// socketBudget runs an operation over a socket. It checks the cost, including the read of
// the connection's record, and the number of messages that the client got.
func socketBudget(t *testing.T, want costs, posted int, conn string, operation func(t *testing.T, c *counted, caller sessions.Caller, id storage.ID)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := countedOn(t, storagetest.NewMemory())
		opened(t, c) // for the handshake record
		caller, id := c.overSocket(t, conn)
		c.reset()
		c.posted = 0
		operation(t, c, caller, id)
		synctest.Wait()
		if diff := cmp.Diff(want, c.costs()); diff != "" {
			t.Errorf("costs (-want +got):\n%s", diff)
		}
		if c.posted != posted {
			t.Errorf("%d messages to the client, want %d", c.posted, posted)
		}
		c.end()
	})
}

func TestBudgetOfACallWithProgressOverASocket(t *testing.T) {
	want := costs{Reads: 2, Writes: 4, Up: frames{frame.TypeEvents: 2}, Down: frames{frame.TypeDeliver: 1, frame.TypeAck: 2}}
	socketBudget(t, want, 2, "c1", func(t *testing.T, c *counted, caller sessions.Caller, id storage.ID) {
		c.message(t, caller, id, callWith(`{"progress":1}`))
		time.Sleep(time.Second)
	})
}

func TestBudgetOfACallWhoseConnectionHasGone(t *testing.T) {
	// The relay function reads the session's record, and notes in it that the client has
	// not got the answer.
	want := costs{Reads: 3, Writes: 2, Up: frames{frame.TypeEvents: 1}, Down: frames{frame.TypeDeliver: 1, frame.TypeAck: 1}}
	socketBudget(t, want, 0, "gone", func(t *testing.T, c *counted, caller sessions.Caller, id storage.ID) {
		c.message(t, caller, id, callWith(`{"sleep":100}`))
	})
}

func TestBudgetOfAnHourOfSilenceOverASocket(t *testing.T) {
	socketBudget(t, costs{Up: frames{frame.TypeBye: 1}, Down: frames{frame.TypeByeOK: 1}, Reads: 1, Writes: 1}, 0, "c1",
		func(*testing.T, *counted, sessions.Caller, storage.ID) { time.Sleep(time.Hour) }) // the box falls asleep, and nothing else happens
}

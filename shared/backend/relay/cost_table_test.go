package relay_test

import (
	"slices"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// operation is a row of the table in costs.md: run, with the session that prepare returns.
type operation struct {
	name    string
	prepare func(t *testing.T, c *counted) storage.ID
	run     func(t *testing.T, c *counted, id storage.ID)
}

// operations returns the operations of the table in costs.md, in its order.
func operations() []operation {
	return slices.Concat(handshakes(), calls(), polls(), rest(), sockets())
}

const (
	toolsList = `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`
	ping      = `{"jsonrpc":"2.0","id":2,"method":"ping"}`
)

func handshakes() []operation {
	opens := func(t *testing.T, c *counted, _ storage.ID) { initialize(t, c.host) }
	return []operation{
		{"initialize, from the handshake record", opened, opens},
		{"initialize, by a box that has to wake", nothing, opens},
		{"notifications/initialized", opened, sends(initialized)},
		{"tools/list, from the handshake record", listed, sends(toolsList)},
		{"tools/list, awake box, for the first time", working, sends(toolsList)},
		{"the same, again", listing, sends(toolsList)},
	}
}

var keyedCall = callWith(`{"sleep":300,"idempotencyKey":"k"}`)

func calls() []operation {
	return []operation{
		{"tools/call, awake box, answered within a second", working, sends(callWith(`{"sleep":300}`))},
		{"the same, after 5 s", working, sends(callWith(`{"sleep":5000}`))},
		{"the same, with one progress", working, sends(callWith(`{"progress":1}`))},
		{"the same, that wakes a box", sleeping, sends(callWith(`{}`))},
		{"the first of a session, that wakes a box", begun, sends(callWith(`{}`))},
		{"tools/call with a key, awake box, answered within a second", working, sends(keyedCall)},
		{"the same, that wakes a box", sleeping, sends(keyedCall)},
		{repeat, repeating, sends(keyedCall)},
		{"another notification", working, sends(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)},
		{"ping", begun, sends(ping)},
		{"an answer to a question", working, sends(`{"jsonrpc":"2.0","id":"q-1","result":{}}`)},
	}
}

const repeat = "a repeat with the key, after the answer"

func polls() []operation {
	var cursor string
	inFlight := func(t *testing.T, c *counted) storage.ID {
		id := working(t, c)
		call := c.accept(t, id, callWith(`{"sleep":60000}`))
		_, err := call.Next(t.Context(), time.Now().Add(5*time.Second))
		commontest.OK(t, err)
		cursor = call.Cursor().String()
		return id
	}
	return []operation{
		{"a poll of a call in flight, held for 5 s in vain", inFlight, func(t *testing.T, c *counted, id storage.ID) {
			c.resume(t, id, cursor, 5*time.Second)
		}},
		{"GET, held for 25 s in vain", begun, func(t *testing.T, c *counted, id storage.ID) {
			c.resume(t, id, "", 25*time.Second)
		}},
	}
}

func rest() []operation {
	lists := func(_ *testing.T, c *counted, id storage.ID) { c.lists(id) }
	return []operation{
		{"DELETE", working, func(t *testing.T, c *counted, id storage.ID) {
			commontest.OK(t, c.host.End(t.Context(), caller, id))
		}},
		{"a fresh process that lists as the one before", after(working, lists), lists},
		{"a box falls asleep", working, silent(10 * time.Minute)},
		{"a session, a day of silence", sleeping, silent(24 * time.Hour)},
	}
}

func sockets() []operation {
	var who sessions.Caller
	connected := func(t *testing.T, c *counted) (id storage.ID) {
		opened(t, c) // for the handshake record
		who, id = c.overSocket(t, "c1")
		return id
	}
	connects := func(conn string) func(*testing.T, *counted, storage.ID) {
		return func(t *testing.T, c *counted, id storage.ID) { c.connect(t, conn, id) }
	}
	says := func(raw string, took time.Duration) func(*testing.T, *counted, storage.ID) {
		return func(t *testing.T, c *counted, id storage.ID) {
			c.message(t, who, id, raw)
			time.Sleep(took)
		}
	}
	return []operation{
		{"WebSocket: connect", onlyRecord, connects("c1")},
		{"WebSocket: connect to a session", connected, connects("c2")},
		{"WebSocket: tools/call, within a fifth of a second", connected, says(callWith(`{"sleep":100}`), time.Second)},
		{"WebSocket: the same, after a minute", connected, says(callWith(`{"sleep":60000}`), time.Minute+time.Second)},
		{"WebSocket: ping", connected, says(ping, time.Second)},
		{"WebSocket: disconnect", connected, func(t *testing.T, c *counted, _ storage.ID) {
			commontest.OK(t, c.host.Disconnect(t.Context(), "c1"))
		}},
	}
}

// The functions below prepare the session that an operation needs.

func nothing(*testing.T, *counted) storage.ID { return "" }

// onlyRecord has no session, and the server's handshake record.
func onlyRecord(t *testing.T, c *counted) storage.ID {
	onRecord(t, c.store, "t", handshake)
	return ""
}

// opened returns a session whose initialize was answered from the server's handshake
// record.
func opened(t *testing.T, c *counted) storage.ID {
	onlyRecord(t, c)
	return initialize(t, c.host)
}

var (
	// begun is like opened, and the client has also sent initialized.
	begun = after(opened, sends(initialized))
	// working is like begun, and the box is awake.
	working = after(begun, sends(callWith(`{}`)), silent(5*time.Second))
	// listing is like working, and the client has asked for the server's tools.
	listing = after(working, sends(toolsList))
	// listed is like begun. The handshake record has the list of tools, and the box sleeps.
	listed = after(begun, sends(toolsList), silent(10*time.Minute))
	// sleeping is like working, but the box has fallen asleep since then.
	sleeping = after(working, silent(10*time.Minute))
	// repeating has a session whose call with a key has been answered.
	repeating = after(working, sends(keyedCall))
)

// after prepares a session, and does more with it.
func after(prepare func(*testing.T, *counted) storage.ID, more ...func(*testing.T, *counted, storage.ID)) func(*testing.T, *counted) storage.ID {
	return func(t *testing.T, c *counted) storage.ID {
		id := prepare(t, c)
		for _, do := range more {
			do(t, c, id)
		}
		return id
	}
}

// The functions below are the operations, or parts of them.

func sends(raw string) func(*testing.T, *counted, storage.ID) {
	return func(t *testing.T, c *counted, id storage.ID) { c.send(t, id, raw) }
}

func silent(span time.Duration) func(*testing.T, *counted, storage.ID) {
	return func(*testing.T, *counted, storage.ID) { time.Sleep(span) }
}

// keepAlive is the silence after which the endpoint writes a comment to a response.
const keepAlive = 15 * time.Second

// resume resumes a stream, or listens if there is no id. It stops when the stream has
// ended or hold is over.
func (c *counted) resume(t *testing.T, id storage.ID, last string, hold time.Duration) {
	t.Helper()
	call, err := c.host.Listen(t.Context(), caller, id, last)
	commontest.OK(t, err)
	for until := time.Now().Add(hold); !call.Done() && time.Now().Before(until); {
		_, err := call.Next(t.Context(), time.Now().Add(min(keepAlive, time.Until(until))))
		commontest.OK(t, err)
		if call.Gap() {
			t.Fatal("there is a gap")
		}
	}
}

func (c *counted) connect(t *testing.T, conn string, id storage.ID) (sessions.Caller, storage.ID) {
	t.Helper()
	who := caller
	who.Transport, who.Conn = storage.WebSocket, conn
	s, _, err := c.host.Connect(t.Context(), who, nil, id, nil)
	commontest.OK(t, err)
	return who, s.ID
}

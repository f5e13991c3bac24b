package relay_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// prices returns the table of what each operation may cost at most, on both drivers. The
// units are those of DynamoDB Local. It counts as AWS does, with two exceptions that cost
// a unit on AWS and are free there: a query that finds nothing, and a read of a record
// that does not exist.
func prices() []price {
	var all []price
	for _, group := range [][]price{handshakes(), calls(), polls(), tasked(), replays(), rest(), sockets()} {
		all = append(all, group...)
	}
	return all
}

func handshakes() []price {
	return []price{
		{
			name:  "initialize, from the handshake record",
			reads: 1, write: 1, requests: 2, readUnits: 1, writeUnits: 2,
			operation: operation{opened, func(t *testing.T, c *counted, _ storage.ID) {
				initialize(t, c.host)
			}},
		},
		{
			name:  "initialize, by a box that has to wake",
			reads: 9, write: 9, waits: 1, requests: 18, readUnits: 9, writeUnits: 13, up: "events, hello, pull, status", down: "ack, deliver, pulled, welcome",
			operation: operation{nothing, func(t *testing.T, c *counted, _ storage.ID) {
				initialize(t, c.host)
			}},
		},
		{
			name:  "notifications/initialized",
			reads: 1, write: 1, requests: 2, readUnits: 1, writeUnits: 2,
			operation: operation{opened, sends(initialized)},
		},
		{
			name:  "tools/list, from the handshake record",
			reads: 2, requests: 2, readUnits: 3,
			operation: operation{listed, sends(toolsList)},
		},
		{
			name:  "tools/list, awake box, for the first time",
			reads: 3, write: 2, waits: 1, requests: 5, readUnits: 4, writeUnits: 2, up: "events", down: "ack, deliver",
			operation: operation{working, sends(toolsList)},
		},
		{
			name:  "the same, again",
			reads: 2, write: 1, waits: 1, requests: 3, readUnits: 3, writeUnits: 1, up: "events", down: "ack, deliver",
			operation: operation{listing, sends(toolsList)},
		},
	}
}

const toolsList = `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`

func calls() []price {
	return []price{
		{
			name:  "tools/call, awake box, answered within a second",
			reads: 1, write: 1, waits: 1, requests: 2, readUnits: 2, writeUnits: 1, up: "events", down: "ack, deliver",
			operation: operation{working, sends(callWith(`{"sleep":300}`))},
		},
		{
			name:  "the same, after 5 s",
			reads: 3, write: 3, waits: 2, requests: 6, readUnits: 4, writeUnits: 5, up: "events, taken", down: "ack, deliver",
			operation: operation{working, sends(callWith(`{"sleep":5000}`))},
		},
		{
			name:  "the same, with one progress",
			reads: 1, write: 4, waits: 2, requests: 5, readUnits: 2, writeUnits: 6, up: "2 events", down: "2 ack, deliver",
			operation: operation{working, sends(callWith(`{"progress":1}`))},
		},
		{
			name:  "the same, that wakes a box",
			reads: 7, write: 6, waits: 1, requests: 13, readUnits: 8, writeUnits: 9, up: "events, hello, pull", down: "ack, deliver, pulled, welcome",
			operation: operation{sleeping, sends(callWith(`{}`))},
		},
		{
			name:  "the first of a session, that wakes a box",
			reads: 7, write: 7, waits: 1, requests: 14, readUnits: 7, writeUnits: 10, up: "events, hello, pull", down: "ack, deliver, pulled, welcome",
			operation: operation{begun, sends(callWith(`{}`))},
		},
		{
			name:  "tools/call with a key, awake box, answered within a second",
			reads: 1, write: 2, waits: 1, requests: 3, readUnits: 2, writeUnits: 2, up: "events", down: "ack, deliver",
			operation: operation{working, sends(keyedCall)},
		},
		{
			name:  "the same, that wakes a box",
			reads: 7, write: 7, waits: 1, requests: 14, readUnits: 8, writeUnits: 10, up: "events, hello, pull", down: "ack, deliver, pulled, welcome",
			operation: operation{sleeping, sends(keyedCall)},
		},
		{
			name:  "a repeat with the key, after the answer",
			reads: 2, write: 1, requests: 3, readUnits: 3, refused: 1,
			operation: operation{repeating, sends(keyedCall)},
		},
		{
			name:  "another notification",
			reads: 1, requests: 1, readUnits: 2, down: "deliver",
			operation: operation{working, sends(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)},
		},
		{
			name:  "ping",
			reads: 1, requests: 1, readUnits: 1,
			operation: operation{begun, sends(`{"jsonrpc":"2.0","id":2,"method":"ping"}`)},
		},
		{
			name:  "an answer to a question",
			reads: 1, write: 2, requests: 3, readUnits: 2, writeUnits: 2, down: "answer",
			operation: operation{working, sends(`{"jsonrpc":"2.0","id":"q-1","result":{}}`)},
		},
	}
}

var keyedCall = callWith(`{"sleep":300,"idempotencyKey":"k"}`)

// repeating has a session whose call with a key has been answered.
func repeating(t *testing.T, c *counted) storage.ID {
	id := working(t, c)
	sends(keyedCall)(t, c, id)
	return id
}

func polls() []price {
	var cursor string
	inFlight := func(t *testing.T, c *counted) storage.ID {
		id := working(t, c)
		call := c.accept(t, id, callWith(`{"sleep":60000}`))
		if _, err := call.Next(t.Context(), time.Now().Add(5*time.Second)); err != nil {
			t.Fatal(err)
		}
		cursor = call.Cursor().String()
		return id
	}
	return []price{
		{
			name:  "a poll of a call in flight, held for 5 s in vain",
			reads: 3, waits: 1, requests: 3, readUnits: 3,
			operation: operation{inFlight, func(t *testing.T, c *counted, id storage.ID) {
				c.resume(t, id, cursor, 5*time.Second)
			}},
		},
		{
			name:  "GET, held for 25 s in vain",
			reads: 2, write: 1, waits: 2, requests: 3, readUnits: 2, writeUnits: 1,
			operation: operation{begun, func(t *testing.T, c *counted, id storage.ID) {
				c.resume(t, id, "", 25*time.Second)
			}},
		},
	}
}

// replays returns operations that resume ended streams from their beginning: events of
// 100 bytes, 100 in a batch.
func replays() []price {
	all := []price{
		{
			name:  "resume of 1 event",
			reads: 2, waits: 1, requests: 2, readUnits: 2, replay: &consumed{Waits: 1, WaitUnits: 1},
		},
		{
			name:  "resume of 100 events",
			reads: 2, waits: 1, requests: 2, readUnits: 4, replay: &consumed{Waits: 1, WaitUnits: 3},
		},
		{
			name:  "resume of 1000 events",
			reads: 2, waits: 1, requests: 2, readUnits: 4, replay: &consumed{Waits: 2, WaitUnits: 27},
		},
		{
			name:  "resume of 5000 events",
			reads: 2, waits: 5, requests: 2, readUnits: 4, replay: &consumed{Waits: 10, WaitUnits: 143},
		},
	}
	for i, n := range []int{1, 100, 1000, 5000} {
		stream := storage.NewStreamID()
		all[i].operation = operation{
			func(t *testing.T, c *counted) storage.ID {
				id := begun(t, c)
				c.log(t, id, stream, n)
				return id
			},
			func(t *testing.T, c *counted, id storage.ID) {
				from := storage.EventID{Stream: stream, Nonce: "x"}
				if got := c.resume(t, id, from.String(), time.Minute); got != n {
					t.Errorf("%d events came, want %d", got, n)
				}
			},
		}
	}
	return all
}

func rest() []price {
	return []price{
		{
			name:  "DELETE",
			reads: 1, write: 1, requests: 2, readUnits: 2, writeUnits: 2, down: "stop",
			operation: operation{working, func(t *testing.T, c *counted, id storage.ID) {
				commontest.OK(t, c.host.End(t.Context(), caller, id))
			}},
		},
		{
			name:  "a fresh process that lists as the one before",
			reads: 1, requests: 1, readUnits: 1, up: "status",
			operation: operation{func(t *testing.T, c *counted) storage.ID {
				id := working(t, c)
				c.lists(id)
				return id
			}, func(_ *testing.T, c *counted, id storage.ID) { c.lists(id) }},
		},
		{
			name:  "a box falls asleep",
			reads: 1, write: 1, requests: 2, readUnits: 1, writeUnits: 2, up: "bye", down: "bye-ok",
			operation: operation{working, silent(10 * time.Minute)},
		},
		{
			name:      "a session, a day of silence",
			operation: operation{sleeping, silent(24 * time.Hour)},
		},
	}
}

func sockets() []price {
	var who sessions.Caller
	connected := func(t *testing.T, c *counted) (id storage.ID) {
		opened(t, c) // for the handshake record
		who, id = c.overSocket(t, "c1")
		return id
	}
	says := func(raw string, took time.Duration) func(*testing.T, *counted, storage.ID) {
		return func(t *testing.T, c *counted, id storage.ID) {
			c.message(t, who, id, raw)
			time.Sleep(took)
		}
	}
	return []price{
		{
			name:  "WebSocket: connect",
			write: 2, requests: 2, writeUnits: 3,
			operation: operation{opened, func(t *testing.T, c *counted, _ storage.ID) {
				c.connect(t, "c1", "")
			}},
		},
		{
			name:  "WebSocket: connect to a session",
			reads: 1, write: 2, requests: 3, readUnits: 2, writeUnits: 3,
			operation: operation{connected, func(t *testing.T, c *counted, id storage.ID) {
				c.connect(t, "c2", id)
			}},
		},
		{
			name:  "WebSocket: tools/call, within a fifth of a second",
			reads: 2, write: 1, waits: 1, requests: 3, readUnits: 3, writeUnits: 1, up: "events", down: "ack, deliver",
			operation: operation{connected, says(callWith(`{"sleep":100}`), time.Second)},
		},
		{
			name:  "WebSocket: the same, after a minute",
			reads: 4, write: 3, waits: 1, requests: 7, readUnits: 5, writeUnits: 5, up: "events, taken", down: "ack, deliver",
			operation: operation{connected, says(callWith(`{"sleep":60000}`), time.Minute+time.Second)},
		},
		{
			name:  "WebSocket: ping",
			reads: 2, requests: 2, readUnits: 3,
			operation: operation{connected, says(`{"jsonrpc":"2.0","id":2,"method":"ping"}`, time.Second)},
		},
		{
			name:  "WebSocket: disconnect",
			reads: 2, write: 2, requests: 4, readUnits: 2, writeUnits: 2,
			operation: operation{connected, func(t *testing.T, c *counted, _ storage.ID) {
				commontest.OK(t, c.host.Disconnect(t.Context(), "c1"))
			}},
		},
	}
}

// The functions below prepare the session that an operation needs.

func nothing(*testing.T, *counted) storage.ID { return "" }

// opened returns a session whose initialize was answered from the server's handshake
// record.
func opened(t *testing.T, c *counted) storage.ID {
	onRecord(t, c.store, "t", handshake)
	return initialize(t, c.host)
}

// begun is like opened, and the client has also sent initialized.
func begun(t *testing.T, c *counted) storage.ID {
	id := opened(t, c)
	c.send(t, id, initialized)
	return id
}

// working is like begun, and the box is awake.
func working(t *testing.T, c *counted) storage.ID {
	id := begun(t, c)
	c.send(t, id, callWith(`{}`))
	time.Sleep(5 * time.Second)
	return id
}

// listing is like working, and the client has asked for the server's tools.
func listing(t *testing.T, c *counted) storage.ID {
	id := working(t, c)
	c.send(t, id, toolsList)
	return id
}

// listed is like begun. The handshake record has the list of tools, and the box sleeps.
func listed(t *testing.T, c *counted) storage.ID {
	id := begun(t, c)
	c.send(t, id, toolsList)
	time.Sleep(10 * time.Minute)
	return id
}

// sleeping is like working, but the box has fallen asleep since then.
func sleeping(t *testing.T, c *counted) storage.ID {
	id := working(t, c)
	time.Sleep(10 * time.Minute)
	return id
}

// The functions below are the operations, or parts of them.

func sends(raw string) func(*testing.T, *counted, storage.ID) {
	return func(t *testing.T, c *counted, id storage.ID) { c.send(t, id, raw) }
}

func silent(span time.Duration) func(*testing.T, *counted, storage.ID) {
	return func(*testing.T, *counted, storage.ID) { time.Sleep(span) }
}

func (c *counted) accept(t *testing.T, id storage.ID, raw string) *sessions.Call {
	t.Helper()
	call, err := c.host.Accept(t.Context(), caller, id, []wire.Message{parse(t, raw)}, false)
	commontest.OK(t, err)
	return call
}

// keepAlive is the silence after which the endpoint writes a comment to a response.
const keepAlive = 15 * time.Second

// resume resumes a stream, or listens if there is no id. It stops when the stream has
// ended or hold is over, and returns how many events came.
func (c *counted) resume(t *testing.T, id storage.ID, last string, hold time.Duration) (events int) {
	t.Helper()
	var call *sessions.Call
	var err error
	if last == "" {
		call, err = c.host.Listen(t.Context(), caller, id, "")
	} else {
		call, err = c.host.Resume(t.Context(), caller, id, last)
	}
	commontest.OK(t, err)
	for until := time.Now().Add(hold); !call.Done() && time.Now().Before(until); {
		got, err := call.Next(t.Context(), time.Now().Add(min(keepAlive, time.Until(until))))
		commontest.OK(t, err)
		if call.Gap() {
			t.Fatal("there is a gap")
		}
		events += len(got)
	}
	return events
}

// log writes a stream that has ended, as a box writes it.
func (c *counted) log(t *testing.T, id storage.ID, stream storage.StreamID, n int) {
	t.Helper()
	const batch = 100
	event := []byte(`{"x":"` + string(bytes.Repeat([]byte("x"), 92)) + `"}`)
	for first := 1; first <= n; first += batch {
		b := storage.Batch{
			Session: id, Stream: stream, First: storage.Index(first), Gen: 1, Seq: int64(first), Expires: time.Now().Add(time.Hour),
		}
		for i := first; i <= min(n, first+batch-1); i++ {
			b.Events = append(b.Events, event)
			b.Final = i == n
		}
		commontest.OK(t, c.store.Append(t.Context(), b))
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

// A call with a key costs one write more than one without, and a repeat one read.
func TestAKeyCostsOneWriteAndARepeatOneRead(t *testing.T) {
	unkeyed := callWith(`{"sleep":300}`)
	awake := billed(t, onSQLite, operation{working, sends(unkeyed)})
	wakes := billed(t, onSQLite, operation{sleeping, sends(unkeyed)})
	for name, tt := range map[string]struct {
		of            bill
		op            operation
		reads, writes int
	}{
		"awake":  {awake, operation{working, sends(keyedCall)}, 0, 1},
		"wakes":  {wakes, operation{sleeping, sends(keyedCall)}, 0, 1},
		"repeat": {awake, operation{repeating, sends(keyedCall)}, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := billed(t, onSQLite, tt.op)
			if got.Reads != tt.of.Reads+tt.reads || got.Writes != tt.of.Writes+tt.writes {
				t.Errorf("%s: %d reads and %d writes; without a key %d and %d", name, got.Reads, got.Writes, tt.of.Reads, tt.of.Writes)
			}
		})
	}
}

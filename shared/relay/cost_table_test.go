package relay_test

import (
	"bytes"
	"strconv"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// prices is the table: what each operation costs, on both drivers. The units are
// those of DynamoDB Local. It counts as AWS does, but gives for nothing what AWS
// charges a unit for: a query that finds nothing, and a record that is asked for
// and not there.
func prices() []price {
	var all []price
	for _, group := range [][]price{handshakes(), calls(), polls(), replays(), rest(), sockets()} {
		all = append(all, group...)
	}
	return all
}

func handshakes() []price {
	return []price{
		{name: "initialize, from the handshake record", operation: operation{opened, func(t *testing.T, c *counted, _ session.ID) {
			c.begin(t)
		}}},
		{name: "initialize, by a box that has to wake", operation: operation{nothing, func(t *testing.T, c *counted, _ session.ID) {
			c.begin(t)
		}}},
		{name: "notifications/initialized", operation: operation{opened, sends(initialized)}},
	}
}

func calls() []price {
	return []price{
		{name: "tools/call, awake box, answered within a second", operation: operation{working, sends(callWith(`{"sleep":300}`))}},
		{name: "the same, after 5 s", operation: operation{working, sends(callWith(`{"sleep":5000}`))}},
		{name: "the same, with one progress", operation: operation{working, sends(callWith(`{"progress":1}`))}},
		{name: "the same, that wakes a box", operation: operation{sleeping, sends(callWith(`{}`))}},
		{name: "the first of a session, that wakes a box", operation: operation{begun, sends(callWith(`{}`))}},
		{name: "another notification", operation: operation{working, sends(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)}},
		{name: "ping", operation: operation{begun, sends(`{"jsonrpc":"2.0","id":2,"method":"ping"}`)}},
		{name: "an answer to a question", operation: operation{working, sends(`{"jsonrpc":"2.0","id":"q1","result":{}}`)}},
	}
}

func polls() []price {
	var cursor string
	inFlight := func(t *testing.T, c *counted) session.ID {
		id := working(t, c)
		call := c.accept(t, id, callWith(`{"sleep":60000}`))
		if _, err := call.Next(t.Context(), time.Now().Add(5*time.Second)); err != nil {
			t.Fatal(err)
		}
		cursor = call.Cursor().String()
		return id
	}
	return []price{
		{name: "a poll of a call in flight, held for 5 s in vain", operation: operation{inFlight, func(t *testing.T, c *counted, id session.ID) {
			c.resume(t, id, cursor, 5*time.Second)
		}}},
		{name: "GET, held for 25 s in vain", operation: operation{begun, func(t *testing.T, c *counted, id session.ID) {
			c.resume(t, id, "", 25*time.Second)
		}}},
	}
}

// replays resume ended streams from their beginning: events of 120 bytes, 100 in a
// batch.
func replays() []price {
	stored := func(n int) price {
		stream := session.NewStreamID()
		return price{name: "resume of " + strconv.Itoa(n) + " events", replay: &consumed{}, operation: operation{
			func(t *testing.T, c *counted) session.ID {
				id := begun(t, c)
				c.log(t, id, stream, n)
				return id
			},
			func(t *testing.T, c *counted, id session.ID) {
				from := session.EventID{Stream: stream, Nonce: "x"}
				if got := c.resume(t, id, from.String(), time.Minute); got != n {
					t.Errorf("%d events came, want %d", got, n)
				}
			},
		}}
	}
	one, hundred, thousand, more := stored(1), stored(100), stored(1000), stored(5000)
	one.name = "resume of 1 event"
	return []price{one, hundred, thousand, more}
}

func rest() []price {
	return []price{
		{name: "DELETE", operation: operation{working, func(t *testing.T, c *counted, id session.ID) {
			if err := c.host.End(t.Context(), caller, id); err != nil {
				t.Fatal(err)
			}
		}}},
		{name: "a box falls asleep", operation: operation{working, silent(10 * time.Minute)}},
		{name: "a session, a day of silence", operation: operation{sleeping, silent(24 * time.Hour)}},
	}
}

func sockets() []price {
	var who session.Caller
	connected := func(t *testing.T, c *counted) (id session.ID) {
		opened(t, c) // for the handshake record
		who, id = c.overSocket(t, "c1")
		return id
	}
	says := func(raw string, took time.Duration) func(*testing.T, *counted, session.ID) {
		return func(t *testing.T, c *counted, id session.ID) {
			c.message(t, who, id, raw)
			time.Sleep(took)
		}
	}
	return []price{
		{name: "WebSocket: connect", operation: operation{opened, func(t *testing.T, c *counted, _ session.ID) {
			c.connect(t, "c1", "")
		}}},
		{name: "WebSocket: connect to a session", operation: operation{connected, func(t *testing.T, c *counted, id session.ID) {
			c.connect(t, "c2", id)
		}}},
		{name: "WebSocket: tools/call, within a fifth of a second", operation: operation{connected, says(callWith(`{"sleep":100}`), time.Second)}},
		{name: "WebSocket: the same, after a minute", operation: operation{connected, says(callWith(`{"sleep":60000}`), time.Minute+time.Second)}},
		{name: "WebSocket: ping", operation: operation{connected, says(`{"jsonrpc":"2.0","id":2,"method":"ping"}`, time.Second)}},
		{name: "WebSocket: disconnect", operation: operation{connected, func(t *testing.T, c *counted, _ session.ID) {
			if err := c.host.Disconnect(t.Context(), "c1"); err != nil {
				t.Fatal(err)
			}
		}}},
	}
}

// What has to be before.

func nothing(*testing.T, *counted) session.ID { return "" }

// opened: the server's handshake is on record, and a session was initialized.
func opened(t *testing.T, c *counted) session.ID { return c.open(t) }

// begun: and the client has said so.
func begun(t *testing.T, c *counted) session.ID {
	id := c.open(t)
	c.send(t, id, initialized)
	return id
}

// working: and its box is awake.
func working(t *testing.T, c *counted) session.ID {
	id := c.open(t)
	awake(t, c, id)
	return id
}

// sleeping: and its box was awake once.
func sleeping(t *testing.T, c *counted) session.ID {
	id := c.open(t)
	asleep(t, c, id)
	return id
}

// What happens.

func sends(raw string) func(*testing.T, *counted, session.ID) {
	return func(t *testing.T, c *counted, id session.ID) { c.send(t, id, raw) }
}

func silent(span time.Duration) func(*testing.T, *counted, session.ID) {
	return func(*testing.T, *counted, session.ID) { time.Sleep(span) }
}

// begin initializes a session and waits for the answer.
func (c *counted) begin(t *testing.T) {
	t.Helper()
	_, call, err := c.host.Initialize(t.Context(), caller, "", parse(t, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`))
	for err == nil && !call.Done() {
		_, err = call.Next(t.Context(), time.Now().Add(time.Minute))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (c *counted) accept(t *testing.T, id session.ID, raw string) *session.Call {
	t.Helper()
	call, err := c.host.Accept(t.Context(), caller, id, []wire.Message{parse(t, raw)}, false)
	if err != nil {
		t.Fatal(err)
	}
	return call
}

// keepAlive is after what time a response on which nothing was said says that it
// is alive.
const keepAlive = 15 * time.Second

// resume takes up a stream, or listens if there is no id, and returns how many
// events came up to its end or for as long as the response is held.
func (c *counted) resume(t *testing.T, id session.ID, last string, hold time.Duration) (events int) {
	t.Helper()
	var call *session.Call
	var err error
	if last == "" {
		call, err = c.host.Listen(t.Context(), caller, id, "")
	} else {
		call, err = c.host.Resume(t.Context(), caller, id, last)
	}
	if err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(hold); !call.Done() && time.Now().Before(until); {
		got, err := call.Next(t.Context(), time.Now().Add(min(keepAlive, time.Until(until))))
		if err != nil {
			t.Fatal(err)
		}
		if call.Gap() {
			t.Fatal("there is a gap")
		}
		events += len(got)
	}
	return events
}

// log writes a stream that has ended, as a box would have.
func (c *counted) log(t *testing.T, id session.ID, stream session.StreamID, n int) {
	t.Helper()
	const batch = 100
	event := []byte(`{"x":"` + string(bytes.Repeat([]byte("x"), 112)) + `"}`)
	for first := 1; first <= n; first += batch {
		b := session.Batch{
			Session: id, Stream: stream, First: session.Index(first), Gen: 1, Seq: int64(first), Expires: time.Now().Add(time.Hour),
		}
		for i := first; i <= min(n, first+batch-1); i++ {
			b.Events = append(b.Events, event)
			b.Final = i == n
		}
		if err := c.store.Append(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
}

func (c *counted) connect(t *testing.T, conn string, id session.ID) {
	t.Helper()
	who := caller
	who.Transport, who.Conn = session.WebSocket, conn
	if _, err := c.host.Connect(t.Context(), who, id, nil); err != nil {
		t.Fatal(err)
	}
}

//go:build e2e

package dormouse_test

import (
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// socket is one MCP client over one WebSocket connection, for one goroutine. It keeps
// the ids of events, if it asked for them.
type socket struct {
	t       *testing.T
	conn    *websocket.Conn
	ids     int
	session string
	last    string // id of the newest event
}

// dial connects to a hosted server; more goes into the query.
func (m *machine) dial(server string, more url.Values) *socket {
	m.t.Helper()
	address, ok := m.ws[server]
	if !ok {
		m.t.Fatalf("server %s is not announced", server)
	}
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	conn, res, err := websocket.Dial(ctx, strings.TrimSuffix(address+"&"+more.Encode(), "&"), &websocket.DialOptions{Subprotocols: []string{"mcp"}}) //nolint:bodyclose // the library closes it
	if err != nil {
		m.t.Fatalf("connect to %s: %v (%v)", server, err, res)
	}
	m.t.Cleanup(func() { _ = conn.CloseNow() })
	conn.SetReadLimit(-1)
	if got := conn.Subprotocol(); got != "mcp" {
		m.t.Errorf("the subprotocol is %q, want mcp", got)
	}
	return &socket{t: m.t, conn: conn}
}

// talk connects and does the handshake with the usual parameters.
func (m *machine) talk(server string) *socket {
	m.t.Helper()
	s := m.dial(server, url.Values{"event-ids": {"1"}})
	s.shakesHands()
	return s
}

func (s *socket) shakesHands() {
	s.t.Helper()
	s.say(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":` + params + `}`)
	if init := s.end(`"init"`); init.Result == nil {
		s.t.Fatalf("initialize was answered %s", init.Raw)
	}
	s.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// resume connects to an existing session, after an event.
func (m *machine) resume(server string, of *socket) *socket {
	m.t.Helper()
	s := m.dial(server, url.Values{"session": {of.session}, "last-event-id": {of.last}, "event-ids": {"1"}})
	s.session, s.last, s.ids = of.session, of.last, of.ids
	return s
}

func (s *socket) say(text string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	commontest.OK(s.t, s.conn.Write(ctx, websocket.MessageText, []byte(text)))
}

// hear returns the next message. It keeps the events that messages are about.
func (s *socket) hear() wire.Message {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	for {
		_, data, err := s.conn.Read(ctx)
		commontest.OK(s.t, err)
		if wire.Lookup(data, "jsonrpc") == nil && wire.Lookup(data, "connectionId") != nil {
			// This is the gateway's own error for an invocation whose function was killed.
			// The request may have been answered before. If not, no answer comes, and the
			// test sees that.
			continue
		}
		m, err := wire.Parse(data)
		commontest.OK(s.t, err)
		if m.Method != "notifications/dormouse/event" {
			return m
		}
		var p struct{ SessionID, EventID string }
		if err := json.Unmarshal(m.Params, &p); err != nil || p.SessionID == "" || p.EventID == "" {
			s.t.Fatalf("an event is told as %s: %v", m.Raw, err)
		}
		s.session, s.last = p.SessionID, p.EventID
	}
}

// end returns the response to a request.
func (s *socket) end(id string) wire.Message {
	s.t.Helper()
	for {
		if m := s.hear(); m.Kind == wire.Response && string(m.ID) == id {
			return m
		}
	}
}

// ask sends a tools/call and returns the id of the request.
func (s *socket) ask(tool, arguments string) string {
	s.t.Helper()
	s.ids++
	id := strconv.Itoa(s.ids)
	s.say((*client)(nil).request(id, tool, arguments))
	return id
}

func (s *socket) text(tool, arguments string) string {
	s.t.Helper()
	return textOf(s.end(s.ask(tool, arguments)))
}

func TestE2ESocketOutlivesEveryProgram(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil}).asPrograms()
	m.start()
	s := m.talk("one")
	s.text("count", "")
	m.killFunctions("socket", "relay", "sweep")
	commontest.EqualIn(t, "after the functions were killed the counter says", "2", s.text("count", ""))
	m.killFunctions("socket", "relay", "sweep")
	m.kill(m.those("runner", "stdio")...)
	m.await(patience, "the fleet has noticed", func(e event) bool { return e.Kind == "box.crash" })
	commontest.EqualIn(t, "after everything was killed the counter says", "1", s.text("count", ""))
}

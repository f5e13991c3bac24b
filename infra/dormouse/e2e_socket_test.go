//go:build e2e

package dormouse_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
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
	s.say(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":` + params + `}`)
	if init := s.end(`"init"`); init.Result == nil {
		m.t.Fatalf("initialize was answered %s", init.Raw)
	}
	s.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return s
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
	commontest.OK(s.t, s.try(text))
}

// try sends a message, in frames as short as the gateway requires.
func (s *socket) try(text string) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	w, err := s.conn.Writer(ctx, websocket.MessageText)
	if err != nil {
		return err
	}
	for part := range slices.Chunk([]byte(text), 32<<10) {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return w.Close()
}

// hear returns the next message, except those about event ids.
func (s *socket) hear() (wire.Message, error) {
	for {
		m, told, err := s.read()
		if err != nil || !told {
			return m, err
		}
	}
}

// read returns the next message. told means that the message named an event.
func (s *socket) read() (m wire.Message, told bool, err error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	_, data, err := s.conn.Read(ctx)
	if err != nil {
		return m, false, err
	}
	if wire.Lookup(data, "jsonrpc") == nil && wire.Lookup(data, "connectionId") != nil {
		// This is the gateway's own error for an invocation whose function was killed.
		// The request may have been answered before. If not, no answer comes, and the
		// test sees that.
		return m, true, nil
	}
	m, err = wire.Parse(data)
	if err != nil || m.Method != "notifications/dormouse/event" {
		return m, false, err
	}
	var p struct{ SessionID, EventID string }
	if err := json.Unmarshal(m.Params, &p); err != nil || p.SessionID == "" || p.EventID == "" {
		return m, true, fmt.Errorf("an event is told as %s: %w", m.Raw, err)
	}
	s.session = p.SessionID
	// The notice that a request was accepted, with index 0, may come after the
	// request's first events.
	index, stream := eventID(p.EventID)
	if before, same := eventID(s.last); same != stream || index > before {
		s.last = p.EventID
	}
	return m, true, nil
}

// eventID returns an event's index and its stream.
func eventID(id string) (index int, stream string) {
	number, stream, _ := strings.Cut(id, "/")
	index, _ = strconv.Atoi(number) // the number of a standalone event has a nonce, and no test compares it
	return index, stream
}

// named reads notices of events, and no other messages, until enough returns true.
func (s *socket) named(enough func() bool) {
	s.t.Helper()
	for !enough() {
		if m, told, err := s.read(); err != nil || !told {
			s.t.Fatalf("got %s, %v, behind event %q", m.Raw, err, s.last)
		}
	}
}

// follow returns the messages up to the response to a request.
func (s *socket) follow(id string) ([]wire.Message, error) {
	var all []wire.Message
	for {
		m, err := s.hear()
		if err != nil {
			return all, fmt.Errorf("request %s, after %v: %w", id, ended(all), err)
		}
		all = append(all, m)
		if m.Kind == wire.Response && string(m.ID) == id {
			return all, nil
		}
	}
}

func (s *socket) end(id string) wire.Message {
	s.t.Helper()
	all, err := s.follow(id)
	commontest.OK(s.t, err)
	return all[len(all)-1]
}

// ask sends a tools/call and returns the id of the request.
func (s *socket) ask(tool, arguments string) string {
	s.t.Helper()
	s.ids++
	id := strconv.Itoa(s.ids)
	s.say((*client)(nil).request(id, tool, arguments))
	return id
}

// id returns the session's id, which is in the first notification about an event.
func (s *socket) id() string {
	s.t.Helper()
	s.named(func() bool { return s.session != "" })
	return s.session
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
	if got := s.text("count", ""); got != "2" {
		t.Errorf("after the functions were killed the counter says %s, want 2", got)
	}
	m.killFunctions("socket", "relay", "sweep")
	m.kill(m.those("runner", "stdio")...)
	m.await(patience, "the fleet has noticed", func(e event) bool { return e.Kind == "box.crash" })
	if got := s.text("count", ""); got != "1" {
		t.Errorf("after everything was killed the counter says %s, want 1", got)
	}
}

// A client loses its connection in the middle of a call. On the next one it gets the rest,
// in order, without repeats.
func TestE2ESocketGoesOnWhereItWasCut(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	m.start()
	s := m.talk("one")
	gate := filepath.Join(t.TempDir(), "gate")
	id := s.ask("work", fmt.Sprintf(`{"gate":%q,"before":3,"after":2}`, gate))
	for n := 1; n <= 3; n++ {
		if got, err := s.hear(); err != nil || got.Method != wire.NotifyProgress {
			t.Fatalf("progress %d: %s, %v", n, got.Raw, err)
		}
	}
	s.named(func() bool { index, _ := eventID(s.last); return index == 3 })
	_ = s.conn.CloseNow()
	write(t, gate, "")
	s = m.resume("one", s)
	got, err := s.follow(id)
	commontest.OK(t, err)
	commontest.SameIn(t, "messages on the next connection", []string{"progress 4", "progress 5", "response " + id}, ended(got))
	if got := s.text("count", ""); got != "1" {
		t.Errorf("the counter says %s, want 1", got)
	}
}

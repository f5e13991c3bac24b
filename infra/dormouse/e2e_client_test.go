//go:build e2e

package dormouse_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// patience is the longest wait of a client where a test promises no time.
const patience = 2 * time.Minute

// params are a usual client's initialize parameters.
const params = `{"protocolVersion":"2025-11-25","capabilities":{"sampling":{},"elicitation":{}},"clientInfo":{"name":"e2e","version":"1"}}`

// initialize is the request with these parameters.
const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":` + params + `}`

// client is one MCP client of one server, on plain HTTP. All its methods except open
// return errors, so that any goroutine may call them.
type client struct {
	t       *testing.T
	http    *http.Client
	url     string
	key     string // "" where callers need none
	session string
	mark    string        // how the tags of its calls begin
	patient time.Duration // how long it waits; 0 for the usual patience
	ids     atomic.Int64
}

// client returns a client of a hosted server, without a session. Every request gets a
// connection of its own.
func (m *machine) client(server string) *client {
	m.t.Helper()
	url, ok := m.urls[server]
	if !ok {
		m.t.Fatalf("server %s is not announced", server)
	}
	return &client{t: m.t, url: url, http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
}

// session opens a session with the usual parameters.
func (m *machine) session(server string) *client {
	m.t.Helper()
	c := m.client(server)
	commontest.OK(m.t, c.open(params))
	return c
}

// again returns the same client after a restart, when the endpoint has another port.
func (m *machine) again(c *client, server string) *client {
	m.t.Helper()
	next := m.client(server)
	next.session = c.session
	return next
}

func (c *client) open(params string) error {
	ctx, cancel := c.patience()
	defer cancel()
	s, err := c.send(ctx, http.MethodPost, "", fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":%s}`, params))
	if err != nil {
		return err
	}
	defer s.close()
	m, err := s.response("0")
	if err != nil {
		return fmt.Errorf("initialize: status %d: %w", s.status, err)
	}
	if got, want := wire.Lookup(m.Result, "protocolVersion"), wire.Lookup([]byte(params), "protocolVersion"); m.Result == nil || !bytes.Equal(got, want) {
		return fmt.Errorf("initialize was answered with %s, want version %s", m.Raw, want)
	}
	c.session = s.header.Get(wire.HeaderSessionID)
	return c.tell(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// tell sends a notification or a response, and expects status 202.
func (c *client) tell(body string) error {
	ctx, cancel := c.patience()
	defer cancel()
	s, err := c.send(ctx, http.MethodPost, "", body)
	if err != nil {
		return err
	}
	defer s.close()
	if s.status != http.StatusAccepted {
		return fmt.Errorf("status %d for %s, want 202", s.status, body)
	}
	return nil
}

// call calls a tool and returns the server's messages up to the response, which comes
// last. It resumes with Last-Event-ID as often as needed.
func (c *client) call(tool, arguments string) ([]wire.Message, error) {
	ctx, cancel := c.patience()
	defer cancel()
	id := c.id()
	s, err := c.send(ctx, http.MethodPost, "", c.request(id, tool, arguments))
	if err != nil {
		return nil, err
	}
	return c.follow(ctx, s, id)
}

// id draws a request id.
func (c *client) id() string { return strconv.FormatInt(c.ids.Add(1), 10) }

// request returns a tools/call. Its progress token is "t" and the id.
func (*client) request(id, tool, arguments string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{"progressToken":"t%s"}}}`,
		id, tool, cmp.Or(arguments, "{}"), strings.Trim(id, `"`))
}

// follow reads a stream, and the streams that continue it, up to the response or until ctx
// is done. A stream that was closed or cut is taken up behind its newest event.
func (c *client) follow(ctx context.Context, s *stream, id string) ([]wire.Message, error) {
	var all []wire.Message
	for {
		stop := context.AfterFunc(ctx, s.close)
		more, err := s.messages()
		stop()
		s.close()
		all = append(all, more...)
		if n := len(all); n > 0 && all[n-1].Kind == wire.Response && string(all[n-1].ID) == id {
			return all, nil
		}
		if s.status != http.StatusOK || s.last == "" {
			return all, fmt.Errorf("request %s has no response and cannot be taken up again: status %d, %w", id, s.status, errors.Join(err, ctx.Err()))
		}
		if s, err = c.send(ctx, http.MethodGet, s.last, ""); err != nil {
			return all, err
		}
	}
}

// post sends a body and returns the open response.
func (c *client) post(body string) (*stream, error) {
	return c.send(c.t.Context(), http.MethodPost, "", body)
}

// resume continues a stream behind an event.
func (c *client) resume(last string) (*stream, error) {
	return c.send(c.t.Context(), http.MethodGet, last, "")
}

// status sends a request and returns only the status of its response.
func (c *client) status(method, body string) (int, error) {
	ctx, cancel := c.patience()
	defer cancel()
	s, err := c.send(ctx, method, "", body)
	if err != nil {
		return 0, err
	}
	s.close()
	return s.status, nil
}

// leave ends the session.
func (c *client) leave() {
	c.t.Helper()
	if status, err := c.status(http.MethodDelete, ""); err != nil || status != http.StatusNoContent {
		c.t.Errorf("DELETE: status %d, %v, want 204", status, err)
	}
}

func (c *client) send(ctx context.Context, method, last, body string) (*stream, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if c.session != "" {
		r.Header.Set(wire.HeaderSessionID, c.session)
		r.Header.Set(wire.HeaderProtocolVersion, wire.V20251125)
	}
	if last != "" {
		r.Header.Set(wire.HeaderLastEventID, last)
	}
	return c.do(r)
}

// do sends a request with the usual headers and returns the open response.
func (c *client) do(r *http.Request) (*stream, error) {
	r.Header.Set("Accept", wire.MediaJSON+", "+wire.MediaSSE)
	r.Header.Set("Content-Type", wire.MediaJSON)
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	res, err := c.http.Do(r) //nolint:bodyclose // by stream.close
	if err != nil {
		return nil, err
	}
	s := &stream{status: res.StatusCode, header: res.Header, body: res.Body, last: r.Header.Get(wire.HeaderLastEventID)}
	if strings.HasPrefix(res.Header.Get("Content-Type"), wire.MediaSSE) {
		s.events = wire.NewSSEReader(res.Body, 16<<20)
	}
	return s, nil
}

func (c *client) patience() (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.t.Context(), cmp.Or(c.patient, patience))
}

// stream is an open response, plain JSON too. One goroutine uses it.
type stream struct {
	status int
	header http.Header
	last   string // id of the newest event, or of the one behind which the stream continues

	body   io.ReadCloser
	events *wire.SSEReader // nil for plain JSON
}

func (s *stream) close() { _ = s.body.Close() } // its client has what it wants

// next returns the next message and skips events without one. It returns io.EOF at
// the end, and another error if the response was cut.
func (s *stream) next() (wire.Message, error) {
	if s.events == nil {
		body, err := io.ReadAll(s.body)
		if err != nil || len(body) == 0 {
			return wire.Message{}, cmp.Or(err, io.EOF)
		}
		return wire.Parse(body)
	}
	for {
		e, err := s.events.Next()
		if err != nil {
			return wire.Message{}, err
		}
		s.last = cmp.Or(e.ID, s.last)
		if len(e.Data) > 0 {
			return wire.Parse(e.Data)
		}
	}
}

// primed reads the cursor that opens every event stream, so that the client can
// come back.
func (s *stream) primed() error {
	if s.events == nil {
		return errors.New("not an event stream")
	}
	e, err := s.events.Next()
	if err == nil && (e.ID == "" || len(e.Data) > 0) { // earlier releases have a retry in it
		err = fmt.Errorf("first event of a stream is %+v, want a bare cursor", e)
	}
	s.last = e.ID
	return err
}

// messages reads to the end. With an error it returns the messages before the error.
func (s *stream) messages() ([]wire.Message, error) {
	var all []wire.Message
	for {
		m, err := s.next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, m)
	}
}

func (s *stream) response(id string) (wire.Message, error) {
	for {
		m, err := s.next()
		if err != nil || m.Kind == wire.Response && string(m.ID) == id {
			return m, err
		}
	}
}

// textOf returns the text of a tool's result.
func textOf(m wire.Message) string {
	var r struct {
		Content []struct{ Text string }
	}
	if json.Unmarshal(m.Result, &r) != nil || len(r.Content) != 1 {
		return "no text in " + string(m.Raw)
	}
	return r.Content[0].Text
}

// outcome calls a tool and returns the response.
func (c *client) outcome(tool, arguments string) wire.Message {
	c.t.Helper()
	messages, err := c.call(tool, arguments)
	if err != nil {
		c.t.Fatalf("%s: %v", tool, err)
	}
	return messages[len(messages)-1]
}

func (c *client) text(tool, arguments string) string {
	c.t.Helper()
	return textOf(c.outcome(tool, arguments))
}

// self is the answer of the tool whoami about its process.
type self struct {
	PID  int
	Name string
	Init json.RawMessage // initialize parameters it was given
}

func (c *client) whoami() self {
	c.t.Helper()
	answer := c.outcome("whoami", "")
	var r struct{ StructuredContent self }
	if err := json.Unmarshal(answer.Result, &r); err != nil || r.StructuredContent.PID == 0 {
		c.t.Fatalf("whoami answered %s", answer.Raw)
	}
	return r.StructuredContent
}

// failure is a JSON-RPC error of a box or of the relay.
type failure struct {
	Code    int
	Message string
	Data    struct{ Phase string }
}

func failureOf(m wire.Message) (f failure, err error) {
	if m.Error == nil {
		return f, fmt.Errorf("no error: %s", m.Raw)
	}
	return f, json.Unmarshal(m.Error, &f)
}

// page is an answer over HTTP.
type page struct {
	status int
	header http.Header
	text   string
}

// web sends a request and reads the whole answer. A header Host replaces the host of the
// address.
func web(t *testing.T, client *http.Client, method, at, body string, header http.Header) page {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, at, strings.NewReader(body))
	commontest.OK(t, err)
	r.Header, r.Host = header, header.Get("Host")
	res, err := client.Do(r)
	commontest.OK(t, err)
	defer func() { _ = res.Body.Close() }() // it was read
	text, err := io.ReadAll(res.Body)
	commontest.OK(t, err)
	return page{res.StatusCode, res.Header, string(text)}
}

package localtest

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/coder/websocket"
)

// WebSockets opens connections to a WebSocket API on a [Pipes].
type WebSockets struct {
	T     testing.TB
	API   *Pipes
	Stage string
}

// Refusal is the server's response to an upgrade request that it refuses.
type Refusal struct {
	Status int
	Body   string
}

// Error implements error.
func (r Refusal) Error() string { return fmt.Sprintf("refused with %d %s", r.Status, r.Body) }

// Dial opens a connection. If the server refuses the upgrade, the error is a [Refusal].
func (w WebSockets) Dial(path string, o websocket.DialOptions) (*WebSocket, error) {
	o.HTTPClient = w.API.Client()
	conn, res, err := websocket.Dial(w.T.Context(), "ws://gateway.test"+path, &o) //nolint:bodyclose // the library keeps the start of a body and closes it
	switch {
	case err == nil:
		conn.SetReadLimit(-1)
		w.T.Cleanup(func() { _ = conn.CloseNow() })
		return &WebSocket{conn, w.T}, nil
	case res == nil:
		return nil, err
	}
	body, err := io.ReadAll(res.Body)
	return nil, errors.Join(Refusal{res.StatusCode, string(body)}, err)
}

// Refused opens a connection, which the server must refuse.
func (w WebSockets) Refused(path string) Refusal {
	w.T.Helper()
	_, err := w.Dial(path, websocket.DialOptions{})
	var r Refusal
	if !errors.As(err, &r) {
		w.T.Fatalf("dial: %v; want a refusal", err)
	}
	return r
}

// Open opens a connection to w.Stage, which the server must accept.
func (w WebSockets) Open() *WebSocket {
	w.T.Helper()
	conn, err := w.Dial("/"+w.Stage, websocket.DialOptions{})
	if err != nil {
		w.T.Fatalf("dial: %v", err)
	}
	return conn
}

// WebSocket is the client's end of a connection.
type WebSocket struct {
	*websocket.Conn
	t testing.TB
}

// Say sends a text message.
func (c *WebSocket) Say(text string) {
	c.t.Helper()
	if err := c.Write(c.t.Context(), websocket.MessageText, []byte(text)); err != nil {
		c.t.Fatalf("write: %v", err)
	}
}

// SayFrames sends one message in several frames.
func (c *WebSocket) SayFrames(kind websocket.MessageType, frames ...string) {
	w, err := c.Writer(c.t.Context(), kind)
	for _, f := range frames {
		if err == nil {
			_, err = io.WriteString(w, f)
		}
	}
	if err == nil {
		_ = w.Close()
	}
}

// Hear returns the next message.
func (c *WebSocket) Hear() string {
	c.t.Helper()
	_, data, err := c.Read(c.t.Context())
	if err != nil {
		c.t.Fatalf("read: %v", err)
	}
	return string(data)
}

// End reads until the connection ends, and returns the server's close frame.
func (c *WebSocket) End() websocket.CloseError {
	c.t.Helper()
	for {
		_, _, err := c.Read(c.t.Context())
		if err == nil {
			continue
		}
		var end websocket.CloseError
		if !errors.As(err, &end) {
			c.t.Fatalf("the connection ended without a close frame: %v", err)
		}
		return end
	}
}

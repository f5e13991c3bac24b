package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	subprotocol = "mcp"
	// maxMessage is well above the 128 KB that API Gateway sends.
	maxMessage   = 1 << 20
	writeTimeout = 10 * time.Second
)

// webSocket is a transport that the SDK does not have: one JSON-RPC message in each text
// message, with the subprotocol mcp. The TypeScript and Python SDKs do the same.
type webSocket struct {
	url string
	tap *wiretap
}

// Connect dials. ctx bounds the handshake only.
func (t *webSocket) Connect(ctx context.Context) (mcp.Connection, error) {
	conn, _, err := websocket.Dial(ctx, t.url, &websocket.DialOptions{Subprotocols: []string{subprotocol}}) //nolint:bodyclose // the documentation of Dial says that the body need not be closed
	if err != nil {
		return nil, err
	}
	if got := conn.Subprotocol(); got != subprotocol {
		return nil, errors.Join(fmt.Errorf("the server chose subprotocol %q, want %q", got, subprotocol), conn.CloseNow())
	}
	conn.SetReadLimit(maxMessage)
	return &webSocketConn{conn: conn, tap: t.tap}, nil
}

type webSocketConn struct {
	conn *websocket.Conn
	tap  *wiretap
}

// Read returns the next message. It returns io.EOF after the server has closed the
// connection properly.
func (c *webSocketConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	kind, data, err := c.conn.Read(ctx)
	switch {
	case websocket.CloseStatus(err) == websocket.StatusNormalClosure:
		return nil, io.EOF
	case err != nil:
		return nil, err
	case kind != websocket.MessageText:
		return nil, errors.New("the server sent a binary message")
	}
	c.tap.note(data)
	return jsonrpc.DecodeMessage(data)
}

// Write always sends a whole message: if a call is given up halfway, the connection must
// still work for other calls.
func (c *webSocketConn) Write(ctx context.Context, msg jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(msg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	return c.conn.Write(ctx, websocket.MessageText, data)
}

// Close closes the connection properly. A second call does nothing.
func (c *webSocketConn) Close() error {
	_ = c.conn.Close(websocket.StatusNormalClosure, "") // it may be closed already
	return nil
}

// SessionID is empty: the connection is the session.
func (c *webSocketConn) SessionID() string { return "" }

package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/coder/websocket"
)

const (
	readLimit  = 131_072         // of the gateway, for a message
	frameRoom  = MaxWSFrame - 14 // the longest frame header is 14 bytes
	closeGrace = 2 * time.Second // for the closing handshake
)

// DialWebSocket is the Dialer for API Gateway: a WebSocket client that sends each
// message in frames of at most [MaxWSFrame] bytes, header included, and takes
// text messages of up to 131,072 bytes. A longer or a binary one ends the
// connection. ctx bounds the opening handshake.
func DialWebSocket(ctx context.Context, url string) (Conn, error) {
	conn, response, err := websocket.Dial(ctx, url, nil) //nolint:bodyclose // Dial says that it never needs to be
	if err != nil {
		if response != nil {
			return nil, fmt.Errorf("the relay refused the connection with status %d: %w", response.StatusCode, err)
		}
		return nil, fmt.Errorf("the relay is not reachable: %w", err)
	}
	conn.SetReadLimit(readLimit)
	gone, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	return webSocket{conn, gone, hangUp}, nil
}

type webSocket struct {
	conn   *websocket.Conn
	gone   context.Context // ends a read, and with it the connection
	hangUp context.CancelFunc
}

// Send writes one text message. It cuts at any byte: only a whole message has to
// be UTF-8.
func (w webSocket) Send(ctx context.Context, message []byte) error {
	if len(message) <= frameRoom {
		return w.conn.Write(ctx, websocket.MessageText, message)
	}
	out, err := w.conn.Writer(ctx, websocket.MessageText)
	if err != nil {
		return err
	}
	for len(message) > 0 {
		n := min(frameRoom, len(message))
		if _, err := out.Write(message[:n]); err != nil {
			return err
		}
		message = message[n:]
	}
	return out.Close()
}

// Receive reads one text message.
func (w webSocket) Receive(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.gone, cancel)()
	kind, message, err := w.conn.Read(ctx)
	if err != nil {
		return nil, err
	}
	if kind != websocket.MessageText {
		return nil, fmt.Errorf("the relay sent a binary message of %d bytes; only text is spoken here", len(message))
	}
	return message, nil
}

// Close says goodbye and hangs up, at once if the peer does not answer soon.
func (w webSocket) Close(reason string) error {
	defer w.hangUp()
	defer time.AfterFunc(closeGrace, w.hangUp).Stop()
	return w.conn.Close(websocket.StatusNormalClosure, reason)
}

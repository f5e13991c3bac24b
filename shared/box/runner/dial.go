package runner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

const (
	readLimit  = 131_072               // the longest message that the gateway sends
	frameRoom  = frame.MaxWSFrame - 14 // bytes of payload in a WebSocket frame, whose header has at most 14 bytes
	closeGrace = 2 * time.Second       // how long the closing handshake may take
)

// DialWebSocket is the [Dialer] for API Gateway. It returns a WebSocket client that sends each
// message in frames of at most [frame.MaxWSFrame] bytes, including their headers, and receives
// text messages of up to 131,072 bytes. A longer message, a binary message, or a send that takes
// longer than 30 seconds ends the connection. ctx limits the time of the opening handshake. If the
// host answers with a status other than 101, the error wraps a [RefusedError].
//
// The url begins with ws:// or wss://, or on one machine has the form ws+unix:SOCKET:PATH.
func DialWebSocket(ctx context.Context, url string, header http.Header) (Conn, error) {
	where, ok := strings.CutPrefix(url, "ws+unix:")
	if !ok {
		return DialWith(ctx, url, header, http.DefaultClient)
	}
	socket, path, _ := strings.Cut(where, ":")
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	return DialWith(ctx, "ws://local"+path, header, &http.Client{Transport: transport})
}

// DialWith is [DialWebSocket] with an HTTP client of the caller. The url must begin with ws:// or
// wss://.
func DialWith(ctx context.Context, url string, header http.Header, client *http.Client) (Conn, error) {
	w := &webSocket{}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { w.under = c.Conn }})
	conn, response, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPClient: client, HTTPHeader: header}) //nolint:bodyclose // the documentation of Dial says that the body need not be closed
	if err != nil {
		if response != nil && response.StatusCode != http.StatusSwitchingProtocols {
			return nil, fmt.Errorf("%w: %w", &RefusedError{Status: response.StatusCode, After: retryAfter(response.Header)}, err)
		}
		return nil, fmt.Errorf("the relay is not reachable: %w", err)
	}
	conn.SetReadLimit(readLimit)
	w.conn = conn
	w.stuck = time.AfterFunc(sendWithin, w.hangUp)
	w.stuck.Stop()
	return w, nil
}

// retryAfter reads the Retry-After header, 0 if the header has a date instead of seconds.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.ParseUint(h.Get("Retry-After"), 10, 16)
	if err != nil {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// webSocket calls its library with contexts that never end, because any other context costs a
// goroutine for each message.
type webSocket struct {
	conn  *websocket.Conn
	under net.Conn    // the TCP or unix connection of conn
	stuck *time.Timer // closes the connection if the peer does not read
}

func (w *webSocket) hangUp() { _ = w.under.Close() }

// Send writes one text message, perhaps in several frames, which may be cut at any byte: only the
// whole message must be UTF-8.
func (w *webSocket) Send(message []byte) error {
	w.stuck.Reset(sendWithin)
	defer w.stuck.Stop()
	ctx := context.Background()
	if len(message) <= frameRoom {
		return ended(w.conn.Write(ctx, websocket.MessageText, message))
	}
	out, err := w.conn.Writer(ctx, websocket.MessageText)
	if err != nil {
		return ended(err)
	}
	for len(message) > 0 {
		n := min(frameRoom, len(message))
		if _, err := out.Write(message[:n]); err != nil {
			return ended(err)
		}
		message = message[n:]
	}
	return ended(out.Close())
}

// ended adds a ClosedError to err if the peer has closed the connection with a code.
func ended(err error) error {
	closed, ok := errors.AsType[websocket.CloseError](err)
	if !ok {
		return err
	}
	return fmt.Errorf("%w: %w", &ClosedError{Code: CloseCode(closed.Code), Reason: closed.Reason}, err)
}

// Receive reads one text message.
func (w *webSocket) Receive() ([]byte, error) {
	kind, message, err := w.conn.Read(context.Background())
	if err != nil {
		return nil, ended(err)
	}
	if kind != websocket.MessageText {
		return nil, fmt.Errorf("the relay sent a binary message of %d bytes; only text is spoken here", len(message))
	}
	return message, nil
}

// Close does the closing handshake and closes the connection, after at most closeGrace.
func (w *webSocket) Close(reason string) error {
	defer w.hangUp()
	defer time.AfterFunc(closeGrace, w.hangUp).Stop()
	return w.conn.Close(websocket.StatusNormalClosure, reason)
}

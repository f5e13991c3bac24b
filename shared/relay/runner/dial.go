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

	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
)

const (
	readLimit  = 131_072               // of the gateway, for a message
	frameRoom  = frame.MaxWSFrame - 14 // the longest frame header is 14 bytes
	closeGrace = 2 * time.Second       // for the closing handshake
)

// DialWebSocket is the Dialer for API Gateway: a WebSocket client that sends each
// message in frames of at most [frame.MaxWSFrame] bytes, header included, and takes
// text messages of up to 131,072 bytes. A longer or a binary one ends the
// connection, and so does a send that takes longer than 30 s. ctx bounds the opening
// handshake. A host that answers with a status is a [RefusedError].
//
// Besides ws:// and wss://, url may be ws+unix:SOCKET:PATH, on one machine.
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

// DialWith is [DialWebSocket] with an HTTP client of the caller's, and for ws:// and
// wss:// only.
func DialWith(ctx context.Context, url string, header http.Header, client *http.Client) (Conn, error) {
	w := &webSocket{}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { w.under = c.Conn }})
	conn, response, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPClient: client, HTTPHeader: header}) //nolint:bodyclose // Dial says that it never needs to be
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

// retryAfter reads the header of that name, in its form in seconds.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.ParseUint(h.Get("Retry-After"), 10, 16)
	if err != nil {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// webSocket gives its library contexts that never end, since one that can costs a watcher
// for each message. What ends a call instead is hanging up.
type webSocket struct {
	conn  *websocket.Conn
	under net.Conn    // what conn is spoken over
	stuck *time.Timer // hangs up on a peer that does not read
}

func (w *webSocket) hangUp() { _ = w.under.Close() }

// Send writes one text message. It cuts at any byte: only a whole message has to
// be UTF-8.
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

// ended adds the close code to the error of a connection that the peer has closed
// with one.
func ended(err error) error {
	var closed websocket.CloseError
	if !errors.As(err, &closed) {
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

// Close says goodbye and hangs up, at once if the peer does not answer soon.
func (w *webSocket) Close(reason string) error {
	defer w.hangUp()
	defer time.AfterFunc(closeGrace, w.hangUp).Stop()
	return w.conn.Close(websocket.StatusNormalClosure, reason)
}

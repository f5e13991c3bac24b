package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

func TestWebSocketPassesMessagesUntilTheServerCloses(t *testing.T) {
	const message = `{"jsonrpc":"2.0","id":7,"result":{"text":"🐭"}}`
	url := serveWebSocket(t, subprotocol, func(ctx context.Context, conn *websocket.Conn) error {
		kind, data, err := conn.Read(ctx)
		if err == nil {
			err = conn.Write(ctx, kind, data)
		}
		return errors.Join(err, conn.Close(websocket.StatusNormalClosure, ""))
	})
	tap := &wiretap{}
	conn, err := (&webSocket{url: url, tap: tap}).Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sent, err := jsonrpc.DecodeMessage([]byte(message))
	if err != nil {
		t.Fatal(err)
	}
	// Write sends the whole message even if its caller has given up.
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := conn.Write(gone, sent); err != nil {
		t.Fatal(err)
	}
	got, err := conn.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if raw, err := jsonrpc.EncodeMessage(got); err != nil || !strings.Contains(string(raw), "🐭") {
		t.Errorf("got %s, %v", raw, err)
	}
	if noted := tap.noted(); len(noted) != 1 || noted[0] != "result" {
		t.Errorf("noted %v", noted)
	}
	if _, err := conn.Read(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("after the close: %v, want io.EOF", err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
}

func TestWebSocketRefusesAServerOfAnotherSubprotocol(t *testing.T) {
	url := serveWebSocket(t, "other", func(ctx context.Context, conn *websocket.Conn) error {
		_, _, _ = conn.Read(ctx) // until the client hangs up
		return nil
	})
	if _, err := (&webSocket{url: url, tap: &wiretap{}}).Connect(t.Context()); err == nil || !strings.Contains(err.Error(), "subprotocol") {
		t.Errorf("got %v", err)
	}
}

func serveWebSocket(t *testing.T, subprotocol string, serve func(context.Context, *websocket.Conn) error) (url string) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{subprotocol}})
		if err == nil {
			err = serve(r.Context(), conn)
		}
		if err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return "ws" + strings.TrimPrefix(server.URL, "http")
}

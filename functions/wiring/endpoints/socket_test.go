package endpoints_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/dormouse-mcp/dormouse/functions/wiring/endpoints"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
)

// socket returns a function for WebSockets that was just started.
func (s *site) socket() *transport.Socket {
	s.t.Helper()
	k, err := endpoints.NewSocket(s.function(), hosted(), endpoints.Alarms{}, func(context.Context, storage.ID) error { return nil }, nil)
	commontest.OK(s.t, err)
	return k
}

// connect asks a new function for a connection; each header is "Name: value".
func (s *site) connect(conn, query string, headers ...string) (status int) {
	s.t.Helper()
	r := httptest.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+"/?"+query, nil)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	status, _, _ = s.socket().Connect(s.t.Context(), conn, r)
	return status
}

// say sends each message through another new function, and returns the replies and the messages
// that were pushed.
func (s *site) say(conn string, messages ...string) (said string) {
	s.t.Helper()
	s.posted.Take()
	for _, message := range messages {
		reply, err := native.Stay(s.t.Context(), func(ctx context.Context) ([]byte, error) { return s.socket().Message(ctx, conn, []byte(message)), nil })
		commontest.OK(s.t, err)
		said += string(reply)
	}
	return said + s.posted.Take()
}

// dial opens a WebSocket.
func (s *site) dial(query, token string) (status int, say func(messages ...string) string) {
	s.t.Helper()
	conn := "c" + storage.NewNonce()
	return s.connect(conn, query, bearer(token)), func(messages ...string) string {
		s.t.Helper()
		return s.say(conn, messages...)
	}
}

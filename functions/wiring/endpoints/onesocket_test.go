package endpoints_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

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

// A token for /mcp opens a WebSocket to all servers and no
// other one. The scope of a tool holds there. The connection ends with the grant.
func TestATokenOfAGroupOpensAWebSocketToIt(t *testing.T) {
	s := newSite(t)
	s.signIn, s.rules = true, true
	client, token, _ := s.brokered("/mcp", "")
	for query, want := range map[string]int{"group=dev": 401, "server=who": 401, "group=closed": 404} {
		if status, _ := s.dial(query, token); status != want {
			t.Errorf("%s: %d, want %d", query, status, want)
		}
	}
	status, say := s.dial("group=all", token)
	if status != http.StatusOK {
		t.Fatalf("the connection was refused with %d", status)
	}
	said := say(initialize, initialized, listTools)
	var names []string
	for _, tool := range []string{"counter__add", "files__read", "files__write_note", "who__me", "files__write_file", "closed__me"} {
		if strings.Contains(said, `"name":"`+tool+`"`) {
			names = append(names, tool)
		}
	}
	commontest.Same(t, []string{"counter__add", "files__read", "files__write_note", "who__me"}, names)
	commontest.Contains(t, "a tool", "read is done", say(call("files__read")))
	if said := say(call("who__me")); !strings.Contains(said, `"code":403`) || !strings.Contains(said, `oauth-protected-resource/mcp"`) || !strings.Contains(said, "who:write") {
		t.Errorf("a tool that needs a scope: %s", said)
	}
	for _, tool := range []string{"files__write_file", "closed__me"} {
		if said := say(call(tool)); !strings.Contains(said, `"error"`) || strings.Contains(said, `"result"`) {
			t.Errorf("%s: %s", tool, said)
		}
	}
	if status, _ := s.post("/revoke", url.Values{"token": {token}, "client_id": {client}}); status != http.StatusOK {
		t.Fatal(status)
	}
	if said := say(call("files__read")); !strings.Contains(said, "revoked") || strings.Contains(said, "is done") {
		t.Errorf("after the end of the grant: %s", said)
	}
}

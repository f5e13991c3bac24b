package endpoints_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/functions/wiring/endpoints"
	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
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
	for name, tokens := range map[string]func(s *site) (client, token string){
		"oauth": func(s *site) (string, string) { client, token, _ := s.brokered("/mcp", ""); return client, token },
		"idp": func(s *site) (string, string) {
			return "", s.token("ada", "x", map[string]any{"aud": []string{s.url + "/mcp"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.signIn, s.rules = name == "oauth", true
			client, token := tokens(s)
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
			for _, tool := range append(oneTools(), "files__write_file", "closed__me") {
				if strings.Contains(said, `"name":"`+tool+`"`) {
					names = append(names, tool)
				}
			}
			if d := cmp.Diff(oneTools(), names); d != "" {
				t.Errorf("%s\n%s", d, said)
			}
			commontest.Contains(t, "a tool", "read is done", say(call("files__read")))
			if said := say(call("who__me")); name == "idp" { // the token's scopes are those of the provider, which has none for tools
				commontest.Contains(t, "the server knows of its user", `corp:ada of acme, {\"groups\":[\"eng\"]`, said)
			} else if !strings.Contains(said, `"code":403`) || !strings.Contains(said, `oauth-protected-resource/mcp"`) || !strings.Contains(said, "who:write") {
				t.Errorf("a tool that needs a scope: %s", said)
			}
			for _, tool := range []string{"files__write_file", "closed__me"} {
				if said := say(call(tool)); !strings.Contains(said, `"error"`) || strings.Contains(said, `"result"`) {
					t.Errorf("%s: %s", tool, said)
				}
			}
			if client == "" {
				return
			}
			if status, _ := s.post("/revoke", url.Values{"token": {token}, "client_id": {client}}); status != http.StatusOK {
				t.Fatal(status)
			}
			if said := say(call("files__read")); !strings.Contains(said, "revoked") || strings.Contains(said, "is done") {
				t.Errorf("after the end of the grant: %s", said)
			}
		})
	}
}

// Over a WebSocket to a group, a key for two servers reaches only these two. So does a
// token for which the key was exchanged.
func TestAKeyOpensAWebSocketToItsServersOfAGroup(t *testing.T) {
	s := newSite(t)
	s.signIn = true
	key, record, err := apikey.Create(t.Context(), s.store, apikey.Grant{Tenant: "acme", Principal: "robot", Servers: []string{"who", "files"}})
	commontest.OK(t, err)
	status, got := s.post("/token", url.Values{"grant_type": {"client_credentials"}, "client_id": {record.ID}, "client_secret": {key}, "resource": {s.url + "/mcp"}})
	if status != http.StatusOK {
		t.Fatal(status, got)
	}
	for name, credential := range map[string]string{"a key": key, "its token": got["access_token"].(string)} {
		t.Run(name, func(t *testing.T) {
			status, say := s.dial("group=all", credential)
			if status != http.StatusOK {
				t.Fatalf("%s: the connection was refused with %d", name, status)
			}
			said := say(initialize, initialized, listTools)
			if !strings.Contains(said, `"who__me"`) || !strings.Contains(said, `"files__read"`) || strings.Contains(said, "counter") {
				t.Errorf("%s has %s", name, said)
			}
			commontest.Contains(t, name, "read is done", say(call("files__read")))
			commontest.Contains(t, name, "there is no tool counter__add here", say(call("counter__add")))
		})
	}
}

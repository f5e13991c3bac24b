package endpoints_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/functions/wiring/endpoints"
	"github.com/dormouse-mcp/dormouse/shared/auth"
	"github.com/dormouse-mcp/dormouse/shared/front"
	"github.com/dormouse-mcp/dormouse/shared/native"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// dial opens a WebSocket through a new function. say sends each message through another
// new function, and returns the replies and the messages that were pushed.
func (s *site) dial(query, token string) (status int, say func(messages ...string) string) {
	s.t.Helper()
	conn := "c" + session.NewNonce()
	function := func() *front.Socket {
		k, err := endpoints.NewSocket(s.function(), hosted(), endpoints.Alarms{}, func(context.Context, session.ID) error { return nil }, nil)
		if err != nil {
			s.t.Fatal(err)
		}
		return k
	}
	r := httptest.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+"/?"+query, nil)
	name, value, _ := strings.Cut(bearer(token), ": ")
	r.Header.Set(name, value)
	status, _, _ = function().Connect(s.t.Context(), conn, r)
	return status, func(messages ...string) string {
		s.t.Helper()
		s.posted.Take()
		var said string
		for _, message := range messages {
			reply, err := native.Stay(s.t.Context(), func(ctx context.Context) ([]byte, error) { return function().Message(ctx, conn, []byte(message)), nil })
			if err != nil {
				s.t.Fatal(err)
			}
			said += string(reply)
		}
		return said + s.posted.Take()
	}
}

// Rows for groups: a token for /mcp opens a WebSocket to all servers and no
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
			if said := say(call("files__read")); !strings.Contains(said, "read is done") {
				t.Errorf("a tool: %s", said)
			}
			if said := say(call("who__me")); name == "idp" { // the token's scopes are those of the provider, which has none for tools
				if !strings.Contains(said, `corp:ada of acme, {\"groups\":[\"eng\"]`) {
					t.Errorf("the server knows of its user: %s", said)
				}
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
			res, err := http.PostForm(s.url+"/revoke", url.Values{"token": {token}, "client_id": {client}}) //nolint:noctx // a test
			if err != nil || res.Body.Close() != nil || res.StatusCode != http.StatusOK {
				t.Fatal(res, err)
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
	key, record, err := auth.Create(t.Context(), s.store, auth.Grant{Tenant: "acme", Principal: "robot", Servers: []string{"who", "files"}})
	if err != nil {
		t.Fatal(err)
	}
	form := url.Values{"grant_type": {"client_credentials"}, "client_id": {record.ID}, "client_secret": {key}, "resource": {s.url + "/mcp"}}
	res, err := http.PostForm(s.url+"/token", form) //nolint:noctx // a test
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var got struct {
		Token string `json:"access_token"`
	}
	if err := json.NewDecoder(res.Body).Decode(&got); err != nil || got.Token == "" {
		t.Fatal(res.Status, err)
	}
	for name, credential := range map[string]string{"a key": key, "its token": got.Token} {
		status, say := s.dial("group=all", credential)
		if status != http.StatusOK {
			t.Fatalf("%s: the connection was refused with %d", name, status)
		}
		said := say(initialize, initialized, listTools)
		if !strings.Contains(said, `"who__me"`) || !strings.Contains(said, `"files__read"`) || strings.Contains(said, "counter") {
			t.Errorf("%s has %s", name, said)
		}
		if said := say(call("files__read")); !strings.Contains(said, "read is done") {
			t.Errorf("%s: %s", name, said)
		}
		if said := say(call("counter__add")); !strings.Contains(said, "there is no tool counter__add here") {
			t.Errorf("%s: %s", name, said)
		}
	}
}

//go:build e2e

package dormouse_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// keys runs dormouse keys on the data of this machine and returns the output.
func (m *machine) keys(verb string, args ...string) string {
	m.t.Helper()
	cmd := m.command("keys "+verb, args...)
	var says strings.Builder
	cmd.Stderr = &says
	out, err := cmd.Output()
	if err != nil {
		m.t.Fatalf("dormouse keys %s: %v: %s", verb, err, says.String())
	}
	return strings.TrimSpace(string(out))
}

// guarded posts a request to the server one, with a key if it is not "".
func (m *machine) guarded(key, session, body string) page {
	m.t.Helper()
	header := usual(wire.HeaderSessionID, session)
	if key != "" {
		header.Set("Authorization", "Bearer "+key)
	}
	return web(m.t, http.DefaultClient, http.MethodPost, m.urls["one"], body, header)
}

// connected dials the endpoint for WebSocket clients and returns the status.
func (m *machine) connected(server string, more url.Values, header http.Header) int {
	m.t.Helper()
	u, err := url.Parse(m.ws[server])
	commontest.OK(m.t, err)
	query := u.Query()
	for name, values := range more {
		query[name] = values
	}
	u.RawQuery = query.Encode()
	conn, res, err := websocket.Dial(m.t.Context(), u.String(), &websocket.DialOptions{HTTPHeader: header}) //nolint:bodyclose // its documentation says that it never has to be
	if err == nil {
		_ = conn.CloseNow() // it has served
	}
	if res == nil {
		m.t.Fatal(err)
	}
	return res.StatusCode
}

func TestE2EKeysLetInWhoHasOne(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil, "two": nil})
	m.start("--access", "keys")
	key, other := m.keys("create", "ada", "--server", "one"), m.keys("create", "ada", "--server", "two")

	for name, test := range map[string]struct {
		key    string
		status int
	}{"no key": {"", 401}, "a key nobody made": {key[:12] + strings.Repeat("a", 32), 401}, "another server's": {other, 403}} {
		commontest.EqualIn(t, name, test.status, m.guarded(test.key, "", initialize).status)
		header := http.Header{}
		if test.key != "" {
			header.Set("Authorization", "Bearer "+test.key)
		}
		commontest.EqualIn(t, name+", WebSocket", test.status, m.connected("one", nil, header))
	}
	if boxes := m.those("runner", "stdio"); len(boxes) > 0 {
		t.Errorf("a box was started for who was refused: %v", boxes)
	}

	answer := m.guarded(key, "", initialize)
	opened := answer.header.Get(wire.HeaderSessionID)
	if answer.status != 200 || opened == "" {
		t.Fatalf("with a key: %d", answer.status)
	}
	m.ticketLetsInOnce(key)

	m.keys("revoke", key)
	m.eventually(patience, "the key is worth nothing", func() bool {
		return m.guarded(key, opened, `{"jsonrpc":"2.0","id":1,"method":"ping"}`).status == 401
	})
	var listed []struct{ ID, Revoked string }
	if err := json.Unmarshal([]byte(m.keys("list", "--json")), &listed); err != nil || len(listed) != 2 {
		t.Fatal(listed, err)
	}
	for _, k := range listed {
		if revoked := k.Revoked != ""; revoked != strings.HasPrefix(key, "dm_"+k.ID) {
			t.Errorf("the list shows %+v", k)
		}
	}
	again := m.keys("create", "ada", "--server", "one")
	if got := m.guarded(again, opened, `{"jsonrpc":"2.0","id":2,"method":"ping"}`); got.status != 200 {
		t.Errorf("another key of the same principal, in the session: %d", got.status)
	}
	for _, text := range []string{m.out.tail(1000), m.log.tail(1000)} {
		for _, secret := range []string{key, other, again} {
			if strings.Contains(text, secret[12:]) {
				t.Error("a key was printed")
			}
		}
	}
}

func (m *machine) ticket(server, key string) string {
	m.t.Helper()
	answer := web(m.t, http.DefaultClient, http.MethodPost, strings.TrimSuffix(m.urls[server], "mcp")+"ticket", "", http.Header{"Authorization": {"Bearer " + key}})
	var got struct{ Ticket string }
	if err := json.Unmarshal([]byte(answer.text), &got); err != nil || got.Ticket == "" {
		m.t.Fatalf("POST ticket: %d, %v", answer.status, err)
	}
	return got.Ticket
}

// ticketLetsInOnce connects in the way of a web page: without headers.
func (m *machine) ticketLetsInOnce(key string) {
	m.t.Helper()
	ticket := m.ticket("one", key)
	for _, want := range []int{101, 401} {
		commontest.EqualIn(m.t, "a ticket", want, m.connected("one", url.Values{"ticket": {ticket}}, nil))
	}
}

//go:build e2e

package dormouse_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// atOne adds the address of all servers to the machine's URLs, and returns its name
// there.
func (m *machine) atOne(server string) string {
	m.urls["/mcp"] = strings.Replace(m.urls[server], "/"+server+"/mcp", "/mcp", 1)
	return "/mcp"
}

func namesIn(t *testing.T, list json.RawMessage) (names []string) {
	t.Helper()
	wire.Elements(wire.Lookup(list, "tools"), func(tool json.RawMessage) bool {
		name, _ := wire.String(wire.Lookup(tool, "name"))
		names = append(names, name)
		return true
	})
	return names
}

func TestE2EOneAddressForAllServers(t *testing.T) {
	t.Parallel()
	program := stdio(t)
	m := machineOf(t, map[string]any{
		"one":    map[string]any{"command": program, "args": []string{"-name", "one"}},
		"two":    map[string]any{"command": program, "args": []string{"-name", "two"}},
		"broken": map[string]any{"command": "sh", "args": []string{"-c", "echo no luck >&2; exit 3"}},
	})
	m.start(sleepy()...)
	all := m.atOne("one")

	c := m.session(all)
	list := c.list()
	if got := namesIn(t, list); !slices.Contains(got, "one__echo") || !slices.Contains(got, "two__echo") || len(got) != 2 {
		t.Errorf("the tools are %s", list)
	}
	if why, _ := wire.String(wire.Lookup(list, "_meta", "dormouse/unavailable", "broken")); !strings.Contains(why, "exited with code 3") || !strings.Contains(why, "no luck") {
		t.Errorf("the list says %q of the server that fails: %s", why, list)
	}
	commontest.EqualIn(t, "the counter says", "1", c.text("two__count", ""))
	if messages, err := c.call("broken__anything", `{}`); err != nil || !strings.Contains(string(messages[len(messages)-1].Raw), "no luck") {
		t.Errorf("a tool of the server that fails: %v, %v", messages, err)
	}

	s, err := c.post(c.request("1", "one__ask", `{"method":"elicitation/create"}`))
	commontest.OK(t, err)
	defer s.close()
	question, err := s.next()
	if err != nil || !strings.HasPrefix(string(question.ID), `"one~`) {
		t.Fatalf("the question is %s, %v", question.Raw, err)
	}
	s.close()
	commontest.OK(t, c.tell(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"decline"}}`, question.ID)))
	if got := c.resumed(s.last); !cmp.Equal(got, []string{"response 1"}) {
		t.Errorf("behind the question came %v, want the response", got)
	}

	gate := filepath.Join(t.TempDir(), "gate")
	if s, err = c.post(c.request("2", "two__stubborn", fmt.Sprintf(`{"gate":%q}`, gate))); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if _, err := s.next(); err != nil {
		t.Fatal(err)
	}
	commontest.OK(t, c.tell(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`))
	if end, err := s.response("2"); err != nil || wire.Lookup(end.Raw, "error") == nil {
		t.Errorf("the cancelled call ended with %s, %v", end.Raw, err)
	}
	commontest.EqualIn(t, "tools for the modern era", 2, len(namesIn(t, c.served("tools/list", "", "", "{}").Result)))
	if a := c.served(wire.MethodToolsCall, "one__echo", `"name":"one__echo","arguments":{"text":"hi"}`, "{}"); textOf(a) != "hi" {
		t.Errorf("the modern call was answered with %s", a.Raw)
	}

	m.asleep()
	wakes := m.count("box.wake")
	next := m.session(all)
	if got := namesIn(t, next.list()); len(got) != 2 {
		t.Errorf("asleep, the tools are %q", got)
	}
	if n := m.wokenSince(wakes); n != 1 { // the one that never started is tried again
		t.Errorf("a list woke %d boxes", n)
	}
	wakes = m.count("box.wake")
	commontest.EqualIn(t, "the counter of the new session says", "1", next.text("two__count", ""))
	if n := m.wokenSince(wakes); n != 1 {
		t.Errorf("a call woke %d boxes", n)
	}
}

// Over a WebSocket to all servers, a tool can ask its client. After dormouse is killed in
// the middle of a call and started again, the client connects, gets the end of the call,
// and continues its session.
func TestE2EOneWebSocketForAllServers(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil, "two": nil})
	m.start(sleepy()...)
	group := func() {
		m.ws["/mcp"] = strings.Replace(m.ws["one"], "?server=one", "?group=all", 1)
	}
	group()
	s := m.talk("/mcp")
	s.say(`{"jsonrpc":"2.0","id":"list","method":"tools/list"}`)
	if got := namesIn(t, s.end(`"list"`).Result); !slices.Contains(got, "one__echo") || !slices.Contains(got, "two__echo") {
		t.Errorf("the tools are %q", got)
	}
	id := s.ask("one__ask", `{"method":"elicitation/create"}`)
	question, err := s.hear()
	if err != nil || !strings.HasPrefix(string(question.ID), `"one~`) {
		t.Fatalf("the question is %s, %v", question.Raw, err)
	}
	s.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"decline"}}`, question.ID))
	if end := s.end(id); end.Result == nil {
		t.Errorf("the call that asked ended with %s", end.Raw)
	}
	commontest.EqualIn(t, "the counter says", "1", s.text("two__count", ""))
	gate := filepath.Join(t.TempDir(), "gate")
	id = s.ask("two__stubborn", fmt.Sprintf(`{"gate":%q}`, gate))
	if m, err := s.hear(); err != nil {
		t.Fatalf("%s, %v", m.Raw, err)
	}
	s.named(func() bool { return strings.HasPrefix(s.last, "1/") && strings.HasSuffix(s.last, "~two") })
	_ = s.conn.CloseNow()
	m.restart()
	group()
	again := m.resume("/mcp", s)
	if end := again.end(id); end.Error == nil && end.Result == nil {
		t.Errorf("the call over the kill ended with %s", end.Raw)
	}
	commontest.EqualIn(t, "after the kill echo says", "hi", again.text("one__echo", `{"text":"hi"}`))
}

//go:build e2e

package dormouse_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// atOne adds the address of all servers to the machine's URLs, and returns its name
// there.
func (m *machine) atOne(server string) string {
	m.urls["/mcp"] = strings.Replace(m.urls[server], "/"+server+"/mcp", "/mcp", 1)
	return "/mcp"
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
	if got := toolsIn(s.end(`"list"`).Result); !strings.Contains(got, "one__echo") || !strings.Contains(got, "two__echo") {
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

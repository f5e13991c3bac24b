//go:build e2e

package dormouse_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// TestE2ETalk checks the conversation of client and server, on one machine with two
// servers. Every part has sessions of its own.
func TestE2ETalk(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil, "two": nil})
	m.start()
	t.Run("questions", func(t *testing.T) { m.in(t).questions() })
	t.Run("question over a cut", func(t *testing.T) { m.in(t).questionOverCut() })
	t.Run("progress before the result", func(t *testing.T) { m.in(t).progressInOrder() })
	t.Run("cancel", func(t *testing.T) { m.in(t).cancel() })
	t.Run("ids keep their form", func(t *testing.T) { m.in(t).keepIDs() })
	t.Run("sessions do not mix", func(t *testing.T) { m.in(t).sessionsApart() })
	t.Run("servers do not mix", func(t *testing.T) { m.in(t).serversApart() })
}

// questions lets a server ask its client over the stream of the call. The client
// answers with a POST of its own.
func (m *machine) questions() {
	for method, result := range map[string]string{
		"sampling/createMessage": `{"role":"assistant","model":"m","content":{"type":"text","text":"<it> is 9007199254740993"}}`,
		"elicitation/create":     `{"action":"accept","content":{"n":1e2}}`,
	} {
		c := m.session("one")
		s, err := c.post(c.request("1", "ask", fmt.Sprintf(`{"method":%q}`, method)))
		commontest.OK(m.t, err)
		defer s.close()
		question, err := s.next()
		if err != nil || question.Kind != wire.Request || question.Method != method || question.Params == nil {
			m.t.Fatalf("the call has begun with %s, %v, want the question %s", question.Raw, err, method)
		}
		commontest.OK(m.t, c.tell(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, question.ID, result)))
		end, err := s.response("1")
		commontest.OK(m.t, err)
		// The server returns what it read: its own id, and the client's result
		// unchanged.
		if want := fmt.Sprintf(`{"jsonrpc":"2.0","id":"s1","result":%s}`, result) + "\n"; textOf(end) != want {
			m.t.Errorf("%s: the server was answered %q, want %q", method, textOf(end), want)
		}
	}
}

// questionOverCut disconnects the client before it answers. The answer must still reach
// the server, and the result must reach the client.
func (m *machine) questionOverCut() {
	c := m.session("one")
	s, err := c.post(c.request("1", "ask", `{"method":"sampling/createMessage"}`))
	commontest.OK(m.t, err)
	question, err := s.next()
	s.close()
	commontest.OK(m.t, err)
	commontest.OK(m.t, c.tell(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-1,"message":"no"}}`, question.ID)))
	if got := c.resumed(s.last); !cmp.Equal(got, []string{"response 1"}) {
		m.t.Errorf("behind the question came %v, want the response", got)
	}
	// The server accepts a second answer and ignores it.
	commontest.Check(m.t, c.tell(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, question.ID)))
}

func (m *machine) progressInOrder() {
	c := m.session("one")
	messages, err := c.call("work", `{"before":200}`)
	commontest.OK(m.t, err)
	if diff := cmp.Diff(steps(200, "1"), ended(messages)); diff != "" {
		m.t.Errorf("messages of the call (-want +got):\n%s", diff)
	}
	for _, p := range messages[:len(messages)-1] {
		if token := string(wire.Lookup(p.Params, wire.MetaProgressToken)); token != `"t1"` {
			m.t.Fatalf("progress has token %s, want the client's", token)
		}
	}
}

// cancel ends a call at once. Dormouse drops the server's later messages about it, on
// its stream and on that of the next call.
func (m *machine) cancel() {
	c := m.session("one")
	gate := filepath.Join(m.t.TempDir(), "gate")
	s, err := c.post(c.request("1", "stubborn", fmt.Sprintf(`{"gate":%q}`, gate)))
	commontest.OK(m.t, err)
	defer s.close()
	if _, err := s.next(); err != nil {
		m.t.Fatal(err)
	}
	begun := s.last
	commontest.OK(m.t, c.tell(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"enough"}}`))
	end, err := s.next()
	commontest.OK(m.t, err)
	if f, err := failureOf(end); err != nil || f.Code != int(wire.CodeCancelled) {
		m.t.Errorf("the cancelled call ended in %s, %v", end.Raw, err)
	}
	// This call ends after the tool of the cancelled call has sent its late result.
	messages, err := c.call("work", fmt.Sprintf(`{"gate":%q}`, gate))
	if err != nil || len(messages) != 1 {
		m.t.Errorf("the next call got %v, %v, want its response alone", ended(messages), err)
	}
	if got := c.resumed(begun); !cmp.Equal(got, []string{"response 1"}) {
		m.t.Errorf("the cancelled call's stream holds %v behind its progress, want its one end", got)
	}
}

func (m *machine) keepIDs() {
	c := m.session("one")
	for _, id := range []string{`9007199254740993`, `-1`, `"1"`, `1`, `"a \"b\" ü"`, `""`} {
		s, err := c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"echo","arguments":{"text":"x"}}}`, id))
		commontest.OK(m.t, err)
		messages, err := s.messages()
		s.close()
		if err != nil || len(messages) != 1 || string(messages[0].ID) != id {
			m.t.Errorf("request %s got %v, %v", id, ended(messages), err)
		}
	}
}

// sessionsApart makes calls in two sessions of one server at the same time, with the
// same ids.
func (m *machine) sessionsApart() {
	const calls = 20
	var all sync.WaitGroup
	pids := make([]int, 2)
	for i := range pids {
		c := m.session("one")
		pids[i] = c.whoami().PID
		all.Go(func() {
			for n := 1; n <= calls; n++ {
				messages, err := c.call("count", "")
				if err != nil || len(messages) != 1 || textOf(messages[0]) != fmt.Sprint(n) {
					m.t.Errorf("session %d, call %d: %v, %v", i, n, ended(messages), err)
					return
				}
			}
		})
	}
	all.Wait()
	if pids[0] == pids[1] {
		m.t.Errorf("two sessions have one process, %d", pids[0])
	}
}

// serversApart checks that a session belongs to its server: another server does not
// know it and does not change it.
func (m *machine) serversApart() {
	one, two := m.session("one"), m.session("two")
	if a, b := one.whoami().Name, two.whoami().Name; a != "one" || b != "two" {
		m.t.Errorf("servers one and two call themselves %s and %s", a, b)
	}
	stranger := m.again(one, "two")
	count := stranger.request("1", "count", "")
	for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
		if status, err := stranger.status(method, count); err != nil || status != http.StatusNotFound {
			m.t.Errorf("%s on another server: status %d, %v, want 404", method, status, err)
		}
	}
	s, err := stranger.post(count)
	commontest.OK(m.t, err)
	defer s.close()
	refusal, err := s.next()
	if f, bad := failureOf(refusal); err != nil || bad != nil || f.Code != int(wire.CodeSessionNotFound) {
		m.t.Errorf("POST on another server: %s, %v, want error %d", refusal.Raw, err, wire.CodeSessionNotFound)
	}
	if got := one.text("count", ""); got != "1" {
		m.t.Errorf("the counter says %s, want 1: the other calls must not have reached it", got)
	}
}

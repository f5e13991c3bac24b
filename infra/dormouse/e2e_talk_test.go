//go:build e2e

package dormouse_test

import (
	"fmt"
	"path/filepath"
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
	t.Run("cancel", func(t *testing.T) { m.in(t).cancel() })
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

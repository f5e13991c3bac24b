//go:build e2e

package dormouse_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// modernMachine returns a machine that hosts the program modern, and the file that gets a line for
// each run of a tool.
func modernMachine(t *testing.T) (m *machine, calls string) {
	t.Helper()
	calls = filepath.Join(t.TempDir(), "calls")
	return machineOf(t, map[string]any{"booking": map[string]any{"command": modern(t), "args": []string{"-calls", calls}}}), calls
}

// asked reads a stream up to a question.
func (s *stream) asked() (wire.Message, error) {
	for {
		m, err := s.next()
		if err != nil || m.Kind == wire.Request {
			return m, err
		}
		if m.Kind == wire.Response {
			return m, fmt.Errorf("a response came where a question should: %s", m.Raw)
		}
	}
}

// question polls until a question has come, from the last event on.
func (c *client) question(s *stream) (q wire.Message, last string, err error) {
	c.t.Helper()
	for began := time.Now(); ; {
		q, err = s.asked()
		s.close()
		if err == nil || s.last == "" || time.Since(began) > patience {
			return q, s.last, err
		}
		if s, err = c.resume(s.last); err != nil {
			return q, "", err
		}
	}
}

func TestE2EAnswerAfterEveryProcessWasKilled(t *testing.T) {
	t.Parallel()
	m, calls := modernMachine(t)
	m.start(sleepy()...)
	c := m.session("booking")
	s, err := c.post(c.request("77", "book", ""))
	commontest.OK(t, err)
	for round, answer := range answers {
		q, last, err := c.question(s)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if q.Method != wire.MethodElicit {
			t.Fatalf("round %d asks %s", round, q.Raw)
		}
		if round == 0 {
			m.await(asleepWithin, "the box sleeps though a question is open", func(e event) bool { return e.Kind == "box.sleep" })
		}
		m.killAll()
		m.start(sleepy()...)
		c = m.again(c, "booking")
		commontest.OK(t, c.tell(answerTo(q, answer)))
		if s, err = c.resume(last); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := c.patience()
	defer cancel()
	messages, err := c.follow(ctx, s, "77")
	commontest.OK(t, err)
	commontest.EqualIn(t, "the call ended with", booked, textOf(messages[len(messages)-1]))
	ranThrice(t, "book", calls)
}

// modernly sends a request as a client of 2026-07-28 with these capabilities, and
// returns the final answer. params are the members of params besides _meta. name is ""
// for a method without a name.
func (c *client) modernly(method, name, params, capabilities string) (status int, answer wire.Message) {
	c.t.Helper()
	if params != "" {
		params += ","
	}
	body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + params + `"_meta":{"` + wire.MetaProtocolVersion + `":"` + wire.V20260728 + `","` +
		wire.MetaClientCapabilities + `":` + capabilities + `}}}`
	ctx, cancel := c.patience()
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(body))
	commontest.OK(c.t, err)
	r.Header.Set(wire.HeaderProtocolVersion, wire.V20260728)
	r.Header.Set(wire.HeaderMethod, method)
	if name != "" {
		r.Header.Set(wire.HeaderName, name)
	}
	s, err := c.do(r)
	commontest.OK(c.t, err)
	defer s.close()
	if answer, err = s.response("1"); err != nil {
		c.t.Fatalf("%s: status %d: %v", method, s.status, err)
	}
	return s.status, answer
}

// served sends a request by modernly and returns the answer. The request must succeed.
func (c *client) served(method, name, params, capabilities string) wire.Message {
	c.t.Helper()
	status, answer := c.modernly(method, name, params, capabilities)
	if answer.Result == nil {
		c.t.Fatalf("%s: status %d: %s", method, status, answer.Raw)
	}
	return answer
}

// answers are the client's answers to the tool book of the modern server, one for each
// round, and booked is the tool's result.
var answers = [2]string{`{"name":"Ada"}`, `{"right":true}`}

func answerTo(q wire.Message, content string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":%s}}`, q.ID, content)
}

const booked = "booked: right for Ada, true"

// ranThrice checks that a tool ran once for each round.
func ranThrice(t *testing.T, tool, calls string) {
	t.Helper()
	want := []string{tool + ` ""`, tool + ` "named"`, tool + ` "right for Ada"`}
	commontest.SameIn(t, "runs of the tool", want, linesOf(t, calls))
}

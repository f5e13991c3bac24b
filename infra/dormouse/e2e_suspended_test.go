//go:build e2e

package dormouse_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// answers are the client's answers to the tool book of the modern server, one for each
// round, and booked is the tool's result. TestE2EAnswerAfterEveryProcessWasKilled does the
// same over Streamable HTTP.
var answers = [2]string{`{"name":"Ada"}`, `{"right":true}`}

const booked = "booked: right for Ada, true"

func answerTo(q wire.Message, content string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":%s}}`, q.ID, content)
}

func TestE2EAnswerOverSSEAfterEveryProcessWasKilled(t *testing.T) {
	t.Parallel()
	m, calls, _ := modernMachine(t)
	m.start(sleepy()...)
	l := m.listen("booking")
	l.say((*client)(nil).request("77", "book", ""))
	for round, answer := range answers {
		q, err := l.asked()
		if err != nil || q.Method != wire.MethodElicit {
			t.Fatalf("round %d asks %s, %v", round, q.Raw, err)
		}
		m.killAll()
		m.start(sleepy()...)
		l = m.listenBehind("booking", l.last)
		l.say(answerTo(q, answer))
	}
	end, err := l.response("77")
	if err != nil || textOf(end) != booked {
		t.Errorf("the call ended with %s, %v", end.Raw, err)
	}
	ranThrice(t, "book", calls)
}

func TestE2EAnswerOverASocketAfterEveryProcessWasKilled(t *testing.T) {
	t.Parallel()
	m, calls, _ := modernMachine(t)
	m.start(sleepy()...)
	s := m.talk("booking")
	id := s.ask("book", "{}")
	for round, answer := range answers {
		q, err := s.hear()
		if err != nil || q.Method != wire.MethodElicit {
			t.Fatalf("round %d asks %s, %v", round, q.Raw, err)
		}
		question, _ := wire.String(q.ID)
		stream, _, _ := strings.Cut(question, ".")
		s.named(func() bool { // the id of the question, behind it
			index, of := eventID(s.last)
			return of == stream && index > round
		})
		if round == 0 {
			m.asleep() // the gateway pushes to the client, so no function waits
		}
		m.killAll()
		m.start(sleepy()...)
		s = m.resume("booking", s)
		s.say(answerTo(q, answer))
	}
	if got := textOf(s.end(id)); got != booked {
		t.Errorf("the call ended with %q", got)
	}
	ranThrice(t, "book", calls)
}

// ranThrice checks that a tool ran once for each round.
func ranThrice(t *testing.T, tool, calls string) {
	t.Helper()
	want := []string{tool + ` ""`, tool + ` "named"`, tool + ` "right for Ada"`}
	if diff := cmp.Diff(want, linesOf(t, calls)); diff != "" {
		t.Errorf("runs of the tool (-want +got):\n%s", diff)
	}
}

// A legacy server's question is in the memory of its process, which goes on while the
// functions are killed. If the client changes the state, or sends a retry twice, that has
// no effect.
func TestE2EModernClientIsAskedByALegacyServer(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil}).asPrograms()
	m.start()
	for method, answer := range map[string]string{
		wire.MethodElicit:        `{"action":"accept","content":{"n":9007199254740993}}`,
		wire.MethodCreateMessage: `{"role":"assistant","model":"m","content":{"type":"text","text":"it"}}`,
		wire.MethodRootsList:     `{"roots":[{"uri":"file:///a"}]}`,
	} {
		c := m.client("one")
		_, asks := c.asking(method, "")
		var result struct {
			ResultType    string
			InputRequests map[string]struct{ Method string }
			RequestState  string
		}
		if err := json.Unmarshal(asks.Result, &result); err != nil || result.ResultType != wire.ResultInputRequired || len(result.InputRequests) != 1 {
			t.Fatalf("%s: answered with %s", method, asks.Raw)
		}
		m.killFunctions("http", "relay")
		for key, asked := range result.InputRequests {
			if asked.Method != method {
				t.Errorf("asked %s, want %s", asked.Method, method)
			}
			retry := func(state string) string {
				return fmt.Sprintf(`,"requestState":%q,"inputResponses":{%q:%s}`, state, key, answer)
			}
			if status, got := c.asking(method, retry(changed(result.RequestState))); status != http.StatusBadRequest || string(wire.Lookup(got.Error, "code")) != "-32602" {
				t.Errorf("%s: a changed state was answered with %d %s", method, status, got.Raw)
			}
			for range 2 {
				if _, end := c.asking(method, retry(result.RequestState)); !strings.Contains(textOf(end), answer) {
					t.Errorf("%s: ended with %s", method, end.Raw)
				}
			}
		}
	}
}

// changed returns a text with another character in its middle.
func changed(text string) string {
	b := []byte(text)
	at := len(b) / 2
	if b[at]++; b[at-1] == b[at] {
		b[at] = 'A'
	}
	return string(b)
}

// asking calls the tool ask as a client of 2026-07-28 with all client capabilities.
func (c *client) asking(method, more string) (status int, answer wire.Message) {
	c.t.Helper()
	return c.modernly(wire.MethodToolsCall, "ask", fmt.Sprintf(`"name":"ask","arguments":{"method":%q}%s`, method, more), `{"roots":{},"sampling":{},"elicitation":{"form":{}}}`)
}

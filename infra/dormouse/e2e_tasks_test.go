//go:build e2e

package dormouse_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// about sends a request of a client of 2026-07-28 that supports tasks, and decodes the
// result into out. params are the members of params without _meta.
func (c *client) about(method, name, params string, out any) {
	c.t.Helper()
	answer := c.served(method, name, params, `{"elicitation":{"form":{}},"extensions":{"io.modelcontextprotocol/tasks":{}}}`)
	commontest.OKIn(c.t, fmt.Sprintf("%s: %s", method, answer.Raw), json.Unmarshal(answer.Result, out))
}

// taskState holds the fields of a task that a client looks at.
type taskState struct {
	ResultType, TaskID, Status string
	PollIntervalMs             int64
	InputRequests              map[string]json.RawMessage
	Result                     json.RawMessage
}

// until polls a task until it is in status. The task says how long to wait between polls.
func (c *client) until(id, status string) taskState {
	c.t.Helper()
	for begun := time.Now(); ; {
		var state taskState
		c.about("tasks/get", id, `"taskId":"`+id+`"`, &state)
		if state.Status == status || time.Since(begun) > patience {
			if state.Status != status {
				c.t.Fatalf("the task is %s, not %s", state.Status, status)
			}
			return state
		}
		select {
		case <-c.t.Context().Done():
			c.t.Fatal(c.t.Context().Err())
		case <-time.After(time.Duration(state.PollIntervalMs) * time.Millisecond):
		}
	}
}

// answers answers the question of a task in a round of the tool plan.
func (c *client) answers(id, answer string) {
	c.t.Helper()
	asks := c.until(id, "input_required").InputRequests
	if len(asks) != 1 {
		c.t.Fatalf("the task asks %v", asks)
	}
	for key := range asks {
		var ack map[string]string
		c.about("tasks/update", id, `"taskId":"`+id+`","inputResponses":{"`+key+`":{"action":"accept","content":`+answer+`}}`, &ack)
		commontest.Same(c.t, map[string]string{"resultType": "complete"}, ack)
	}
}

// completes checks how a task ends. calls is the file of the tools that were run.
func (c *client) completes(id, calls string) {
	c.t.Helper()
	done := c.until(id, "completed")
	if got := textOf(wire.Message{Result: done.Result}); got != booked {
		c.t.Errorf("the task ended with %s", done.Result)
	}
	ranThrice(c.t, "plan", calls)
}

// A task waits for its client while no process runs. New processes finish it.
func TestE2ETaskOutlivesEveryProcess(t *testing.T) {
	t.Parallel()
	m, calls := modernMachine(t)
	m.start(sleepy()...)
	var made taskState
	m.client("booking").about("tools/call", "plan", `"name":"plan","arguments":{}`, &made)
	if made.ResultType != wire.ResultTask || made.Status != "working" {
		t.Fatalf("got %+v", made)
	}
	id := made.TaskID
	m.client("booking").until(id, "input_required")
	m.asleep()
	m.killAll()
	m.start(sleepy()...)
	for _, answer := range answers {
		m.client("booking").answers(id, answer)
	}
	m.client("booking").completes(id, calls)
	m.asleep()
}

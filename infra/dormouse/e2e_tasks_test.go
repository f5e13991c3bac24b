//go:build e2e

package main_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// about sends a request of a client of 2026-07-28 that supports tasks, and decodes the
// result into out. params are the members of params without _meta.
func (c *client) about(method, name, params string, out any) {
	c.t.Helper()
	answer := c.served(method, name, params, `{"elicitation":{"form":{}},"extensions":{"io.modelcontextprotocol/tasks":{}}}`)
	if err := json.Unmarshal(answer.Result, out); err != nil {
		c.t.Fatalf("%s: %s: %v", method, answer.Raw, err)
	}
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

// A task waits for its client while no process runs. New processes finish it.
func TestE2ETaskOutlivesEveryProcess(t *testing.T) {
	t.Parallel()
	m, calls, _ := modernMachine(t)
	m.start(sleepy()...)
	var made taskState
	m.client("booking").about("tools/call", "plan", `"name":"plan","arguments":{}`, &made)
	if made.ResultType != wire.ResultTask || made.Status != "working" {
		t.Fatalf("got %+v", made)
	}
	id := made.TaskID
	for round, answer := range []string{`{"name":"Ada"}`, `{"right":true}`} {
		state := m.client("booking").until(id, "input_required")
		if len(state.InputRequests) != 1 {
			t.Fatalf("round %d asks %v", round, state.InputRequests)
		}
		if round == 0 {
			m.asleep()
			m.killAll()
			m.start(sleepy()...)
		}
		for key := range state.InputRequests {
			var ack map[string]string
			m.client("booking").about("tasks/update", id, `"taskId":"`+id+`","inputResponses":{"`+key+`":{"action":"accept","content":`+answer+`}}`, &ack)
			if diff := cmp.Diff(map[string]string{"resultType": "complete"}, ack); diff != "" {
				t.Error(diff)
			}
		}
	}
	done := m.client("booking").until(id, "completed")
	if got := textOf(wire.Message{Result: done.Result}); got != "booked: right for Ada, true" {
		t.Errorf("the task ended with %s", done.Result)
	}
	want := []string{`plan ""`, `plan "named"`, `plan "right for Ada"`}
	if diff := cmp.Diff(want, linesOf(t, calls)); diff != "" {
		t.Errorf("runs of the tool (-want +got):\n%s", diff)
	}
	m.asleep()
}

package bridge_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

const taskStream = storage.StreamID("06gvvas2ltp2t3vumnlh760he0")

func made() time.Time { return time.Date(2026, 11, 21, 9, 0, 0, int(250*time.Millisecond), time.UTC) }

// taskAfter returns a task that has taken these events, which are written without "jsonrpc".
func taskAfter(abilities string, events ...string) *bridge.Task {
	t := bridge.NewTask("name", bridge.TaskRef{Session: "s", Stream: taskStream, Made: made(), Abilities: abilities}, "")
	t.Keep = time.Hour
	for i, e := range events {
		t.Take(storage.Event{Index: storage.Index(i + 1), Raw: []byte(`{"jsonrpc":"2.0",` + e + `}`)})
	}
	return t
}

func TestTaskSaysWhatBecameOfItsCall(t *testing.T) {
	const (
		asked    = `"id":"q1","method":"elicitation/create","params":{"message":"m","_meta":{"x":1}}`
		progress = `"method":"notifications/progress","params":{"progress":1,"message":"half"}`
		end      = `"id":"` + string(taskStream) + `",`
		input    = `"inputRequests":{"q1":{"method":"elicitation/create","params":{"message":"m","_meta":{"x":1}}}}`
	)
	for _, tt := range []struct {
		name, abilities string
		events          []string
		answered        map[string]bool
		status, more    string
	}{
		{"nothing yet", "", nil, nil, "working", ""},
		{"progress", "", []string{progress}, nil, "working", `,"statusMessage":"half"`},
		{"a question", "e", []string{asked}, nil, "input_required", "," + input},
		{"a question that is answered", "e", []string{asked}, map[string]bool{"q1": true}, "working", ""},
		{"a question that was taken back", "e", []string{asked, `"method":"notifications/cancelled","params":{"requestId":"q1"}`}, nil, "working", ""},
		{"a question that cannot be asked", "", []string{asked}, nil, "working", ""},
		{"a result behind a question", "e", []string{asked, end + `"result":{"content":[]}`}, nil, "completed", `,"result":{"content":[],"resultType":"complete"}`},
		{"an error", "", []string{end + `"error":{"code":7,"message":"m"}`}, nil, "failed", `,"error":{"code":7,"message":"m"},"statusMessage":"m"`},
		{"a cancellation", "", []string{end + `"error":{"code":-32800,"message":"m"}`}, nil, "cancelled", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			updated := made().Add(time.Minute)
			if tt.status == "working" {
				updated = made()
			}
			const layout = "2006-01-02T15:04:05.000Z"
			want := fmt.Sprintf(`{"resultType":"complete","taskId":"name","status":%q,"createdAt":%q,"lastUpdatedAt":%q,"ttlMs":3600000,"pollIntervalMs":5000%s}`,
				tt.status, made().Format(layout), updated.Format(layout), tt.more)
			got := taskAfter(tt.abilities, tt.events...).Detailed(tt.answered, made().Add(time.Minute), 5*time.Second)
			commontest.Same(t, want, string(got))
		})
	}
}

func TestTaskRefusesWhatItsClientCannotBeAsked(t *testing.T) {
	events := []string{
		`"id":"q1","method":"elicitation/create","params":{"mode":"url","url":"https://x"}`,
		`"id":"q2","method":"roots/list"`,
		`"id":"q3","method":"custom/ask"`,
		`"id":"q4","method":"sampling/createMessage","params":{"messages":[],"includeContext":"allServers"}`,
	}
	task := taskAfter("be", events...) // sampling, and forms
	var got []string
	for _, raw := range task.Refusals(map[string]bool{"q2": true}) {
		got = append(got, string(raw))
	}
	want := []string{
		`{"jsonrpc":"2.0","id":"q1","result":{"action":"cancel"}}`,
		`{"jsonrpc":"2.0","id":"q3","error":{"code":-32601,"message":"the client has not declared that it can be asked custom/ask"}}`,
	}
	commontest.Same(t, want, got)
	if detailed := string(task.Detailed(nil, made(), time.Second)); !strings.Contains(detailed, `"includeContext":"none"`) || strings.Contains(detailed, "https://x") {
		t.Errorf("got %s", detailed)
	}
}

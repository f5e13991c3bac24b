package transport_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func TestTaskLadder(t *testing.T) {
	const name = `"taskId":"t"`
	with := []string{"Mcp-Name", "t"}
	for _, tt := range []struct {
		name   string
		ask    ask
		status int
		code   wire.Code
	}{
		{"tasks/get, not declared", ask{method: "tasks/get", params: name, headers: with}, 400, wire.CodeMissingCapability},
		{"tasks/update, not declared", ask{method: "tasks/update", params: name, headers: with}, 400, wire.CodeMissingCapability},
		{"tasks/cancel, not declared", ask{method: "tasks/cancel", params: name, headers: with}, 400, wire.CodeMissingCapability},
		{"tasks/get of nothing", ask{method: "tasks/get", params: name, headers: with, caps: taskCaps}, 400, wire.CodeInvalidParams},
		{"tasks/update of nothing", ask{method: "tasks/update", params: name, headers: with, caps: taskCaps}, 400, wire.CodeInvalidParams},
		{"tasks/cancel of nothing", ask{method: "tasks/cancel", params: name, headers: with, caps: taskCaps}, 400, wire.CodeInvalidParams},
		{"no name", ask{method: "tasks/get", caps: taskCaps}, 400, wire.CodeInvalidParams},
		{"a name that is no string", ask{method: "tasks/get", params: `"taskId":7`, caps: taskCaps}, 400, wire.CodeInvalidParams},
		{"no header", ask{method: "tasks/get", params: name, caps: taskCaps}, 400, wire.CodeHeaderMismatch},
		{"another header", ask{method: "tasks/get", params: name, headers: []string{"Mcp-Name", "u"}, caps: taskCaps}, 400, wire.CodeHeaderMismatch},
		{"a header for nothing", ask{method: "tasks/cancel", headers: with, caps: taskCaps}, 400, wire.CodeHeaderMismatch},
		{"tasks/result", ask{method: "tasks/result", params: name, caps: taskCaps}, 404, wire.CodeMethodNotFound},
		{"tasks/list", ask{method: "tasks/list", caps: taskCaps}, 404, wire.CodeMethodNotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			modern(t, func(t *testing.T, w *world) {
				w.opts.Observer = nil
				got := w.do(tt.ask.request())
				if code, _ := got.rpcError(t); got.status != tt.status || code != int(tt.code) {
					t.Errorf("got %d %s", got.status, got.body)
				}
				if tt.code == wire.CodeMissingCapability && !strings.Contains(got.body, needsTasks) {
					t.Errorf("got %s", got.body)
				}
			})
		})
	}
}

func TestTaskIsNobodyElses(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.after("slow", 10*time.Second)
		w.backend.tool("asks", func(r run) { r.asks("q-1", elicit) })
		made := w.becomes(tasking("slow"))
		a := taskAsking("asks")
		state := w.do(a.request()).required(t).State
		other := made.of("tasks/get", "")
		other.headers = append(other.headers, "Authorization", "eve")
		tampered := []byte(made.TaskID)
		if tampered[40] = 'A'; made.TaskID[40] == 'A' {
			tampered[40] = 'B'
		}
		for name, a := range map[string]ask{
			"of another principal":     other,
			"at another server":        made.of("tasks/get", "").at("pushy"),
			"tampered with":            task{TaskID: string(tampered)}.of("tasks/get", ""),
			"cut":                      task{TaskID: made.TaskID[:len(made.TaskID)-1]}.of("tasks/get", ""),
			"a request state":          task{TaskID: state}.of("tasks/get", ""),
			"the stream it is in":      task{TaskID: string(storage.NewStreamID())}.of("tasks/get", ""),
			"to cancel, of another":    {method: "tasks/cancel", caps: taskCaps, params: other.params, headers: other.headers},
			"to update, of another":    {method: "tasks/update", caps: taskCaps, params: other.params + `,"inputResponses":{}`, headers: other.headers},
			"a task as a requestState": a.retry(rounds{State: made.TaskID}, `{}`),
		} {
			if got := w.do(a.request()); got.status != 400 || !strings.Contains(got.body, `"code":-32602`) {
				t.Errorf("%s: %d %s", name, got.status, got.body)
			}
		}
		if raw := strings.Join(w.backend.got, ""); strings.Contains(raw, "notifications/cancelled") {
			t.Error("somebody else has cancelled it")
		}
	})
}

func TestTaskUpdateIsRead(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("asks", func(r run) { time.Sleep(2 * time.Second); r.asks("q-1", elicit) })
		made := w.becomes(taskAsking("asks"))
		time.Sleep(2 * time.Second)
		for _, responses := range []string{``, `,"inputResponses":[]`, `,"inputResponses":{"q-1":7}`, `,"inputResponses":{"q-1":{"action":"maybe"}}`} {
			if got := w.do(made.of("tasks/update", responses).request()); got.status != 400 || !strings.Contains(got.body, `"code":-32602`) {
				t.Errorf("%s: %d %s", responses, got.status, got.body)
			}
		}
		if got := w.get(made); got.Status != "input_required" {
			t.Errorf("got %+v", got)
		}
	})
}

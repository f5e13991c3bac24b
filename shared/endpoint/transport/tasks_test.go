package transport_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

const (
	taskCaps    = `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`
	taskAskCaps = `{"roots":{},"elicitation":{"form":{}},"extensions":{"io.modelcontextprotocol/tasks":{}}}`
	needsTasks  = `"data":{"requiredCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}`
)

func tasking(tool string) ask { a := toolCall(tool); a.caps = taskCaps; return a }

func taskAsking(tool string) ask { a := toolCall(tool); a.caps = taskAskCaps; return a }

type task struct {
	ResultType     string          `json:"resultType"`
	TaskID         string          `json:"taskId"`
	Status         string          `json:"status"`
	StatusMessage  string          `json:"statusMessage"`
	CreatedAt      time.Time       `json:"createdAt"`
	LastUpdatedAt  time.Time       `json:"lastUpdatedAt"`
	TTLMs          int64           `json:"ttlMs"`
	PollIntervalMs int64           `json:"pollIntervalMs"`
	Result         json.RawMessage `json:"result"`
	Error          json.RawMessage `json:"error"`
	InputRequests  map[string]json.RawMessage
	RequestState   *string `json:"requestState"`
}

func taskOf(t *testing.T, raw json.RawMessage) task {
	t.Helper()
	var out task
	commontest.OKIn(t, string(raw), json.Unmarshal(raw, &out))
	return out
}

func (w *world) becomes(a ask) task {
	w.t.Helper()
	got := w.do(a.request())
	made := taskOf(w.t, wire.Lookup(got.message(w.t), "result"))
	if made.ResultType != "task" || made.Status != "working" || made.TaskID == "" || made.Result != nil || made.RequestState != nil {
		w.t.Fatalf("no task: %d %s", got.status, got.body)
	}
	return made
}

func (made task) of(method, params string) ask {
	return ask{
		method: method, caps: taskAskCaps, params: `"taskId":"` + made.TaskID + `"` + params, headers: []string{"Mcp-Name", made.TaskID},
	}
}

func (w *world) get(made task) task {
	w.t.Helper()
	got := taskOf(w.t, w.do(made.of("tasks/get", "").request()).result(w.t))
	if got.ResultType != "complete" || got.TaskID != made.TaskID || !got.CreatedAt.Equal(made.CreatedAt) || got.RequestState != nil {
		w.t.Fatalf("got %+v, made %+v", got, made)
	}
	return got
}

// stands asserts where a task stands, and the keys of the questions that it asks.
func (w *world) stands(what string, made task, status string, questions ...string) task {
	w.t.Helper()
	got := w.get(made)
	commontest.EqualIn(w.t, what, status, got.Status)
	commontest.SameIn(w.t, what+", questions", questions, slices.Sorted(maps.Keys(got.InputRequests)))
	if (got.Result != nil) != (status == "completed") || (got.Error != nil) != (status == "failed") {
		w.t.Errorf("%s: got %+v", what, got)
	}
	return got
}

// acked sends a request whose answer is an empty acknowledgement.
func (w *world) acked(a ask) {
	w.t.Helper()
	if got := w.do(a.request()).body; got != `{"jsonrpc":"2.0","id":7,"result":{"resultType":"complete"}}` {
		w.t.Fatalf("got %s", got)
	}
}

// lists has the client list its tools: the keys of support, with their values as execution.taskSupport.
func (w *world) lists(support map[string]string) {
	w.t.Helper()
	var tools []string
	for name, says := range support {
		tools = append(tools, fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"},"execution":{"taskSupport":%q}}`, name, says))
	}
	w.backend.tool("tools/list", func(r run) { r.end(`{"tools":[` + strings.Join(tools, ",") + `]}`) })
	w.do(ask{method: "tools/list"}.request()).result(w.t)
}

func (w *world) after(tool string, took time.Duration) {
	w.backend.tool(tool, func(r run) {
		time.Sleep(took)
		r.end(`{"content":[{"type":"text","text":"` + tool + `"}]}`)
	})
}

func TestTaskIsMadeOfACallThatTakesLong(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.after("slow", 10*time.Second)
		begun := time.Now()
		made := w.becomes(tasking("slow"))
		call := w.lastLine()
		commontest.EqualIn(t, "answered after", 1100*time.Millisecond, time.Since(begun))
		if !made.CreatedAt.Equal(time.Now()) || made.TTLMs != (24*time.Hour).Milliseconds() || made.PollIntervalMs != 1000 {
			t.Errorf("got %+v", made)
		}
		commontest.EqualIn(t, "updated at", made.LastUpdatedAt, w.stands("at once", made, "working").LastUpdatedAt)
		time.Sleep(time.Minute)
		got := w.stands("in the end", made, "completed")
		commontest.Equal(t, `{"content":[{"type":"text","text":"slow"}],"resultType":"complete"}`, string(got.Result))
		commontest.EqualIn(t, "to be polled every", 6000, got.PollIntervalMs)
		if line := w.lastLine(); line.Outcome != "done" || line.Stream != call.Stream || call.Stream == "" {
			t.Errorf("the poll logged %+v of %+v", line, call)
		}
		commontest.EqualIn(t, "messages to the server", 1, len(w.backend.got))
	})
}

func TestTaskIsNotMadeWhereItIsNotNeeded(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.after("slow", 10*time.Second)
		for name, c := range map[string]struct {
			ask  ask
			took time.Duration
		}{
			"a call that ends at once":            {tasking("quick"), 0},
			"a client that does not know them":    {toolCall("slow"), 10 * time.Second},
			"a request that is no call of a tool": {ask{method: "prompts/get", params: `"name":"slow"`, caps: taskCaps}, 10 * time.Second},
			"with the parameter of 2025-11-25":    {ask{method: "tools/call", params: `"name":"quick","task":{"ttl":60000}`, caps: taskCaps}, 0},
		} {
			got := w.do(c.ask.request())
			if !strings.Contains(got.body, `"resultType":"complete"`) || strings.Contains(got.body, "taskId") || got.took != c.took {
				t.Errorf("%s: got %s after %s", name, got.body, got.took)
			}
		}
	})
}

func TestTaskFollowsWhatTheToolSaysOfTasks(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.lists(map[string]string{"required": "required", "optional": "optional", "never": "forbidden"})
		for _, tool := range []string{"required", "optional", "never"} {
			w.after(tool, 10*time.Second)
		}
		for _, tool := range []string{"required", "optional"} {
			begun := time.Now()
			w.becomes(tasking(tool))
			commontest.EqualIn(t, tool+", answered after", 300*time.Millisecond, time.Since(begun))
		}
		for _, a := range []ask{tasking("never"), toolCall("optional")} {
			if got := w.do(a.request()); got.took != 10*time.Second || strings.Contains(got.body, "taskId") {
				t.Errorf("%s: %s after %s", a.params, got.body, got.took)
			}
		}
		before := len(w.backend.got)
		got := w.do(toolCall("required").request())
		got.is(t, "required, of a client without", 400, wire.CodeMissingCapability)
		commontest.Contains(t, "the error", needsTasks, got.body)
		commontest.EqualIn(t, "messages to the server", before, len(w.backend.got))
	})
}

func TestTaskModeOfTheServer(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.after("slow", 10*time.Second)
		w.change(func(s *sessions.Server) { s.Tasks = sessions.TasksOff })
		if got := w.do(tasking("slow").request()); got.took != 10*time.Second || strings.Contains(got.body, "taskId") {
			t.Errorf("got %s after %s", got.body, got.took)
		}
		told := strings.Join(w.backend.got, "") + w.do(ask{server: "known", method: "server/discover"}.request()).body
		if strings.Contains(told, "modelcontextprotocol/tasks") {
			t.Errorf("somebody is told of tasks: %s", told)
		}
		w.do(task{TaskID: "t"}.of("tasks/get", "").request()).is(t, "tasks/get", 404, 0)
		w.change(func(s *sessions.Server) { s.Tasks = sessions.TasksAlways })
		begun := time.Now()
		w.becomes(tasking("slow"))
		commontest.EqualIn(t, "answered after", 300*time.Millisecond, time.Since(begun))
	})
}

func TestTaskAsksOneAfterTheOther(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		var said []string
		w.backend.tool("asks", func(r run) {
			time.Sleep(5 * time.Second)
			r.asks("q-1", elicit)
			r.asks("q-2", roots)
			said = r.answers("q-1", "q-2")
			time.Sleep(5 * time.Second)
			r.end(`{"content":[]}`)
		})
		made := w.becomes(taskAsking("asks"))
		w.stands("before it asks", made, "working")
		time.Sleep(5 * time.Second)
		got := w.stands("when it asks", made, "input_required", "q-1", "q-2")
		commontest.Equal(t, `{`+elicit+`}`, string(got.InputRequests["q-1"]))
		w.acked(made.of("tasks/update", `,"inputResponses":{"q-9":{"extra":1}}`))
		w.acked(made.of("tasks/update", `,"inputResponses":{"q-2":{"roots":[]}}`))
		w.stands("after one answer", made, "input_required", "q-1")
		w.acked(made.of("tasks/update", `,"inputResponses":{"q-1":`+accept+`,"q-2":{"roots":["late"]}}`))
		w.stands("after both", made, "working")
		time.Sleep(6 * time.Second)
		w.stands("in the end", made, "completed")
		commontest.Same(t, []string{accept, `{"roots":[]}`}, said)
		w.acked(made.of("tasks/update", `,"inputResponses":{"q-1":{"action":"cancel"}}`))
	})
}

func TestTaskIsCancelled(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.after("slow", 10*time.Second)
		made := w.becomes(tasking("slow"))
		w.acked(made.of("tasks/cancel", ""))
		told := w.backend.got[len(w.backend.got)-1]
		if !strings.Contains(told, `"method":"notifications/cancelled"`) || !strings.Contains(told, `"reason":"the client cancelled the task"`) {
			t.Errorf("the server was told %s", told)
		}
		time.Sleep(time.Minute)
		w.acked(made.of("tasks/cancel", "")) // it has ended

		w.backend.tool("waits", func(run) {}) // for its box
		made = w.becomes(tasking("waits"))
		commontest.OK(t, w.store.SaveBox(t.Context(), storage.Box{ID: storage.BoxFor("tenant", "quiet"), State: storage.Starting, Gen: 2, Rev: 1}))
		w.acked(made.of("tasks/cancel", ""))
		w.acked(made.of("tasks/cancel", ""))
		w.stands("in the end", made, "cancelled")
	})
}

func TestTaskExpires(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("slow", func(r run) {
			time.Sleep(10 * time.Second)
			commontest.Check(t, r.w.store.Append(r.ctx, storage.Batch{
				Session: r.session, Stream: r.stream, First: 1, Gen: 1, Seq: 1, Final: true, Expires: time.Now().Add(storage.EventAge),
				Events: [][]byte{wire.ResultResponse(r.requests[0], json.RawMessage(`{"content":[]}`))},
			}))
		})
		w.backend.attend = storage.Errorf(storage.NotFound, "nobody owes it an end")
		made := w.becomes(tasking("slow"))
		w.stands("of which nothing is kept", made, "failed")
		time.Sleep(time.Duration(made.TTLMs)*time.Millisecond - time.Minute)
		w.stands("before its time is over", made, "completed")
		time.Sleep(2 * time.Minute)
		w.do(made.of("tasks/get", "").request()).is(t, "after it", 400, wire.CodeInvalidParams)

		w.backend.attend = nil
		w.after("long", 30*time.Hour) // longer than events are kept
		made = w.becomes(tasking("long"))
		time.Sleep(25 * time.Hour)
		commontest.EqualIn(t, "a long one is kept for", (48 * time.Hour).Milliseconds(), w.stands("a long one", made, "working").TTLMs)
		time.Sleep(6 * time.Hour)
		w.stands("a long one in the end", made, "completed")
	})
}

func TestTaskTroubleOfTheStoreIsNoUnknownTask(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.after("slow", 10*time.Second)
		made := w.becomes(tasking("slow"))
		w.down("Load")
		for _, a := range []ask{made.of("tasks/get", ""), made.of("tasks/cancel", ""), made.of("tasks/update", `,"inputResponses":{}`)} {
			w.do(a.request()).is(t, a.method, 503, 0)
		}
		w.down()
		w.backend.attend = storage.Errorf(storage.Unavailable, "the store does not answer").Because(errors.New("throttled"))
		w.do(made.of("tasks/get", "").request()).is(t, "a call in trouble", 503, 0)
		w.backend.attend = nil
		time.Sleep(time.Minute)
		w.stands("in the end", made, "completed")
	})
}

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
		{"tasks/get of nothing", ask{method: "tasks/get", params: name, headers: with, caps: taskCaps}, 400, wire.CodeInvalidParams},
		{"no name", ask{method: "tasks/get", caps: taskCaps}, 400, wire.CodeInvalidParams},
		{"a name that is no string", ask{method: "tasks/get", params: `"taskId":7`, caps: taskCaps}, 400, wire.CodeInvalidParams},
		{"no header", ask{method: "tasks/get", params: name, caps: taskCaps}, 400, wire.CodeHeaderMismatch},
		{"another header", ask{method: "tasks/get", params: name, headers: []string{"Mcp-Name", "u"}, caps: taskCaps}, 400, wire.CodeHeaderMismatch},
		{"tasks/result", ask{method: "tasks/result", params: name, caps: taskCaps}, 404, wire.CodeMethodNotFound},
	} {
		modern(t, func(t *testing.T, w *world) {
			w.opts.Observer = nil
			got := w.do(tt.ask.request())
			got.is(t, tt.name, tt.status, tt.code)
			if tt.code == wire.CodeMissingCapability {
				commontest.Contains(t, tt.name, needsTasks, got.body)
			}
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
			w.do(a.request()).is(t, name, 400, wire.CodeInvalidParams)
		}
		commontest.EqualIn(t, "cancels", 0, len(slicesWith(w.backend.got, "notifications/cancelled")))
	})
}

func TestTaskIsListenedTo(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("asks", func(r run) {
			time.Sleep(5 * time.Second)
			r.asks("q-1", elicit)
			r.answers("q-1")
			r.end(`{"content":[]}`)
		})
		made := w.becomes(taskAsking("asks").at("known"))
		listens := w.begin(ask{method: "subscriptions/listen", id: "41", caps: taskAskCaps, server: "known", params: `"notifications":{"taskIds":["unknown","` + made.TaskID + `"]}`}.request())
		time.Sleep(10 * time.Second)
		w.acked(made.of("tasks/update", `,"inputResponses":{"q-1":`+accept+`}`).at("known"))
		got := listens.end()
		datas := got.datas(t)
		if len(datas) != 4 || datas[0] != acknowledged(`{"taskIds":["`+made.TaskID+`"]}`) {
			t.Fatalf("got %s", strings.Join(datas, "\n"))
		}
		for i, status := range []string{"input_required", "completed"} {
			told := taskOf(t, wire.Lookup([]byte(datas[i+1]), "params"))
			method, _ := wire.String(wire.Lookup([]byte(datas[i+1]), "method"))
			if method != "notifications/tasks" || told.Status != status || told.TaskID != made.TaskID || told.ResultType != "" || !strings.Contains(datas[i+1], stamp) {
				t.Errorf("got %s", datas[i+1])
			}
		}
		if !strings.HasPrefix(datas[3], `{"jsonrpc":"2.0","id":41,"result":{"resultType":"complete"`) || got.took > 11*time.Second {
			t.Errorf("ended after %s with %s", got.took, datas[3])
		}
	})
}

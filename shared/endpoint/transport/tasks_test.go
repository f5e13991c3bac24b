package transport_test

import (
	"encoding/json"
	"errors"
	"fmt"
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

// tasking is a call of a client that knows tasks.
func tasking(tool string) ask { a := toolCall(tool); a.caps = taskCaps; return a }

// taskAsking is a call of a client that knows tasks and can be asked.
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

// becomes makes a call that becomes a task, and returns the task.
func (w *world) becomes(a ask) task {
	w.t.Helper()
	got := w.do(a.request())
	raw := wire.Lookup([]byte(got.body), "result")
	if got.header.Get("Content-Type") == wire.MediaSSE {
		datas := got.datas(w.t)
		raw = wire.Lookup([]byte(datas[len(datas)-1]), "result")
	}
	made := taskOf(w.t, raw)
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

// acked sends a request whose answer is an empty acknowledgement.
func (w *world) acked(a ask) {
	w.t.Helper()
	if got := w.do(a.request()).body; got != `{"jsonrpc":"2.0","id":7,"result":{"resultType":"complete"}}` {
		w.t.Fatalf("got %s", got)
	}
}

// lists has the client list its tools: the keys of support, with their values as
// execution.taskSupport.
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
		if took := time.Since(begun); took != 1100*time.Millisecond { // when its trace is looked for
			t.Errorf("answered after %s", took)
		}
		if !made.CreatedAt.Equal(time.Now()) || made.TTLMs != (24*time.Hour).Milliseconds() || made.PollIntervalMs != 1000 {
			t.Errorf("got %+v", made)
		}
		if got := w.get(made); got.Status != "working" || got.Result != nil || !got.LastUpdatedAt.Equal(made.LastUpdatedAt) {
			t.Errorf("got %+v", got)
		}
		time.Sleep(time.Minute)
		got := w.get(made)
		want := `{"content":[{"type":"text","text":"slow"}],"resultType":"complete"}`
		if got.Status != "completed" || string(got.Result) != want || got.PollIntervalMs != 6000 {
			t.Errorf("got %+v", got)
		}
		if n := len(w.backend.got); n != 1 {
			t.Errorf("the server got %s", w.backend.got)
		}
	})
}

func TestTaskIsNotMadeWhereItIsNotNeeded(t *testing.T) {
	held := ask{method: "prompts/get", params: `"name":"slow"`, caps: taskCaps}
	for name, c := range map[string]struct {
		ask  ask
		took time.Duration
	}{
		"a call that ends at once":            {tasking("quick"), 0},
		"a client that does not know them":    {toolCall("slow"), 10 * time.Second},
		"a request that is no call of a tool": {held, 10 * time.Second},
		"with the parameter of 2025-11-25":    {ask{method: "tools/call", params: `"name":"quick","task":{"ttl":60000}`, caps: taskCaps}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			modern(t, func(t *testing.T, w *world) {
				w.after("slow", 10*time.Second)
				got := w.do(c.ask.request())
				if !strings.Contains(got.body, `"resultType":"complete"`) || strings.Contains(got.body, "taskId") || got.took != c.took {
					t.Errorf("got %s after %s", got.body, got.took)
				}
			})
		})
	}
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
			if took := time.Since(begun); took != 300*time.Millisecond {
				t.Errorf("%s: answered after %s", tool, took)
			}
		}
		for _, a := range []ask{tasking("never"), toolCall("optional")} {
			if got := w.do(a.request()); got.took != 10*time.Second || strings.Contains(got.body, "taskId") {
				t.Errorf("%s: %s after %s", a.params, got.body, got.took)
			}
		}
		before := len(w.backend.got)
		got := w.do(toolCall("required").request())
		if code, _ := got.rpcError(t); got.status != 400 || code != int(wire.CodeMissingCapability) || !strings.Contains(got.body, needsTasks) {
			t.Errorf("required, of a client without: %d %s", got.status, got.body)
		}
		if len(w.backend.got) != before {
			t.Error("the server was called")
		}
	})
}

func TestTaskModeOfTheServer(t *testing.T) {
	mode := func(w *world, m sessions.TaskMode) {
		servers := w.opts.Servers
		w.opts.Servers = func(name string) (sessions.Server, bool) {
			s, ok := servers(name)
			s.Tasks = m
			return s, ok
		}
		w.after("slow", 10*time.Second)
	}
	t.Run("always", func(t *testing.T) {
		modern(t, func(t *testing.T, w *world) {
			mode(w, sessions.TasksAlways)
			begun := time.Now()
			w.becomes(tasking("slow"))
			commontest.EqualIn(t, "answered after", 300*time.Millisecond, time.Since(begun))
		})
	})
	t.Run("off", func(t *testing.T) {
		modern(t, func(t *testing.T, w *world) {
			mode(w, sessions.TasksOff)
			if got := w.do(tasking("slow").request()); got.took != 10*time.Second || strings.Contains(got.body, "taskId") {
				t.Errorf("got %s after %s", got.body, got.took)
			}
			if raw := strings.Join(w.backend.got, ""); strings.Contains(raw, "modelcontextprotocol/tasks") {
				t.Errorf("the server is told of tasks: %s", raw)
			}
			if got := w.do(ask{server: "known", method: "server/discover"}.request()).body; strings.Contains(got, "modelcontextprotocol/tasks") {
				t.Errorf("the client is told of tasks: %s", got)
			}
			if got := w.do(task{TaskID: "t"}.of("tasks/get", "").request()); got.status != 404 {
				t.Errorf("got %d %s", got.status, got.body)
			}
		})
	})
}

func TestTaskIsToldOfOnlyWhenItIsAccepted(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.after("slow", time.Minute)
		begun := time.Now()
		w.backend.tend = func() (sessions.Status, error) {
			return sessions.Status{Accepted: time.Since(begun) > 7*time.Second, Next: time.Now().Add(time.Second)}, nil
		}
		w.becomes(tasking("slow"))
		if took := time.Since(begun); took < 7*time.Second {
			t.Errorf("told after %s", took)
		}
	})
}

func TestTaskThatNobodyTookIsNotToldOf(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.after("slow", time.Hour)
		w.backend.tend = func() (sessions.Status, error) { return sessions.Status{Next: time.Now().Add(time.Second)}, nil }
		if got := w.do(tasking("slow").request()); got.status != 503 || strings.Contains(got.body, "taskId") {
			t.Errorf("got %d %s", got.status, got.body)
		}
	})
}

func TestTaskComesBehindTheProgressThatWasShown(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("slow", func(r run) {
			for i, said := range []string{"one", "two"} {
				r.append(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":%d,"message":%q}}`, i, said), false)
				time.Sleep(10 * time.Second)
			}
			r.end(`{"content":[]}`)
		})
		a := tasking("slow")
		a.meta = `,"progressToken":"p"`
		got := w.do(a.request())
		datas := got.datas(t)
		if len(datas) != 2 || !strings.Contains(datas[0], `"message":"one"`) || got.took != time.Second {
			t.Fatalf("got %s after %s", datas, got.took)
		}
		made := taskOf(t, wire.Lookup([]byte(datas[1]), "result"))
		commontest.EqualIn(t, "it says", "one", w.get(made).StatusMessage)
		time.Sleep(11 * time.Second)
		commontest.EqualIn(t, "later it says", "two", w.get(made).StatusMessage)
	})
}

func TestTaskEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end, status, message, result, fault string
	}{
		"with what the tool calls an error": {
			end: `"result":{"content":[],"isError":true}`, status: "completed", result: `{"content":[],"isError":true,"resultType":"complete"}`,
		},
		"with an error": {
			end: `"error":{"code":-32603,"message":"it broke","data":{"x":1}}`, status: "failed", message: "it broke",
			fault: `{"code":-32603,"message":"it broke","data":{"x":1}}`,
		},
		"with an error of the other era": {
			end: `"error":{"code":-32002,"message":"no such thing"}`, status: "failed", message: "no such thing",
			fault: `{"code":-32602,"message":"no such thing"}`,
		},
		"cancelled": {end: `"error":{"code":-32800,"message":"request cancelled by the client"}`, status: "cancelled"},
	} {
		t.Run(name, func(t *testing.T) {
			modern(t, func(t *testing.T, w *world) {
				w.backend.tool("slow", func(r run) {
					time.Sleep(10 * time.Second)
					r.append(`{"jsonrpc":"2.0","id":`+string(r.requests[0])+`,`+c.end+`}`, true)
				})
				made := w.becomes(tasking("slow"))
				time.Sleep(time.Minute)
				got := w.get(made)
				if got.Status != c.status || got.StatusMessage != c.message || string(got.Result) != c.result || string(got.Error) != c.fault {
					t.Errorf("got %+v", got)
				}
			})
		})
	}
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
		if got := w.get(made); got.Status != "working" {
			t.Errorf("before it asks: %+v", got)
		}
		time.Sleep(5 * time.Second)
		got := w.get(made)
		if got.Status != "input_required" || len(got.InputRequests) != 2 || string(got.InputRequests["q-1"]) != `{`+elicit+`}` {
			t.Fatalf("got %+v", got)
		}
		w.acked(made.of("tasks/update", `,"inputResponses":{"q-9":{"extra":1}}`))
		w.acked(made.of("tasks/update", `,"inputResponses":{"q-2":{"roots":[]}}`))
		if got = w.get(made); got.Status != "input_required" || len(got.InputRequests) != 1 || got.InputRequests["q-1"] == nil {
			t.Errorf("after one answer: %+v", got)
		}
		w.acked(made.of("tasks/update", `,"inputResponses":{"q-1":`+accept+`,"q-2":{"roots":["late"]}}`))
		if got = w.get(made); got.Status != "working" || len(got.InputRequests) != 0 {
			t.Errorf("after both: %+v", got)
		}
		time.Sleep(6 * time.Second)
		if got = w.get(made); got.Status != "completed" {
			t.Errorf("in the end: %+v", got)
		}
		commontest.Same(t, []string{accept, `{"roots":[]}`}, said)
		w.acked(made.of("tasks/update", `,"inputResponses":{"q-1":{"action":"cancel"}}`))
	})
}

func TestTaskIsMadeBehindTheRoundsOfItsCall(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("asks", func(r run) {
			r.asks("q-1", elicit)
			r.answers("q-1")
			time.Sleep(5 * time.Second)
			r.asks("q-2", elicit)
		})
		a := taskAsking("asks")
		asked := w.do(a.request()).required(t)
		made := w.becomes(a.retry(asked, `{"q-1":`+accept+`}`))
		if got := w.get(made); got.Status != "working" {
			t.Errorf("what was answered before is asked again: %+v", got)
		}
		time.Sleep(5 * time.Second)
		if got := w.get(made); got.Status != "input_required" || len(got.InputRequests) != 1 || got.InputRequests["q-2"] == nil {
			t.Errorf("got %+v", got)
		}
	})
}

func TestTaskDoesNotAskWhatWasNotDeclared(t *testing.T) {
	for name, c := range map[string]struct {
		call, get string
		refused   bool
	}{
		"never":                    {taskCaps, taskCaps, true},
		"when the call was made":   {taskAskCaps, taskCaps, false},
		"when it is come back for": {taskCaps, taskAskCaps, false},
	} {
		t.Run(name, func(t *testing.T) {
			modern(t, func(t *testing.T, w *world) {
				w.backend.tool("asks", func(r run) {
					time.Sleep(5 * time.Second)
					r.asks("q-1", elicit)
					r.end(`{"content":[{"type":"text","text":` + fmt.Sprintf("%q", r.answers("q-1")[0]) + `}]}`)
				})
				a := tasking("asks")
				a.caps = c.call
				made := w.becomes(a)
				time.Sleep(5 * time.Second)
				get := made.of("tasks/get", "")
				get.caps = c.get
				got := taskOf(t, w.do(get.request()).result(t))
				if asked := got.Status == "input_required"; asked == c.refused {
					t.Errorf("got %+v", got)
				}
				w.acked(made.of("tasks/update", `,"inputResponses":{"q-1":`+accept+`}`)) // too late, or in time
				time.Sleep(time.Second)
				if got = w.get(made); c.refused && !strings.Contains(string(got.Result), `{\"action\":\"cancel\"}`) {
					t.Errorf("the server was not told: %+v", got)
				}
			})
		})
	}
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
	})
}

func TestTaskIsCancelledBeforeItsBoxIsAwake(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("slow", func(run) {})
		made := w.becomes(tasking("slow"))
		box := storage.BoxFor("tenant", "quiet")
		commontest.OK(t, w.store.SaveBox(t.Context(), storage.Box{ID: box, State: storage.Starting, Gen: 2, Rev: 1}))
		w.acked(made.of("tasks/cancel", ""))
		w.acked(made.of("tasks/cancel", ""))
		if got := w.get(made); got.Status != "cancelled" || got.Result != nil || got.Error != nil {
			t.Errorf("got %+v", got)
		}
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
		if got := w.get(made); got.Status != "failed" || got.Error == nil || got.StatusMessage == "" {
			t.Errorf("of which nothing is kept: %+v", got)
		}
		time.Sleep(time.Duration(made.TTLMs)*time.Millisecond - time.Minute)
		if got := w.get(made); got.Status != "completed" {
			t.Errorf("before its time is over: %+v", got)
		}
		time.Sleep(2 * time.Minute)
		if got := w.do(made.of("tasks/get", "").request()); got.status != 400 || !strings.Contains(got.body, `"code":-32602`) {
			t.Errorf("after it: %d %s", got.status, got.body)
		}
	})
}

func TestTaskThatTakesLongerThanEventsAreKeptIsStillFound(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.after("slow", 30*time.Hour)
		made := w.becomes(tasking("slow"))
		time.Sleep(25 * time.Hour)
		if got := w.get(made); got.Status != "working" || got.TTLMs != (48*time.Hour).Milliseconds() {
			t.Errorf("got %+v", got)
		}
		time.Sleep(6 * time.Hour)
		if got := w.get(made); got.Status != "completed" {
			t.Errorf("got %+v", got)
		}
	})
}

func TestTaskTroubleOfTheStoreIsNoUnknownTask(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.after("slow", 10*time.Second)
		made := w.becomes(tasking("slow"))
		w.down("Load")
		for _, a := range []ask{made.of("tasks/get", ""), made.of("tasks/cancel", ""), made.of("tasks/update", `,"inputResponses":{}`)} {
			if got := w.do(a.request()); got.status != 503 {
				t.Errorf("%s: %d %s", a.method, got.status, got.body)
			}
		}
		w.down()
		w.backend.attend = storage.Errorf(storage.Unavailable, "the store does not answer").Because(errors.New("throttled"))
		if got := w.do(made.of("tasks/get", "").request()); got.status != 503 {
			t.Errorf("got %d %s", got.status, got.body)
		}
		w.backend.attend = nil
		time.Sleep(time.Minute)
		if got := w.get(made); got.Status != "completed" {
			t.Errorf("got %+v", got)
		}
	})
}

func TestTaskWhoseBoxIsNotAwakeIsLookedAfter(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.after("slow", time.Hour)
		made := w.becomes(tasking("slow"))
		tended := 0
		w.backend.tend = func() (sessions.Status, error) {
			tended++
			return sessions.Status{Accepted: true, Next: time.Now().Add(time.Second)}, nil
		}
		if w.get(made); tended != 0 {
			t.Errorf("looked after %d times, though its box is awake", tended)
		}
		commontest.OK(t, w.store.SaveBox(t.Context(), storage.Box{ID: storage.BoxFor("tenant", "quiet"), State: storage.Asleep, Gen: 1, Rev: 1}))
		if w.get(made); tended != 1 {
			t.Errorf("looked after %d times", tended)
		}
	})
}

func TestTaskBudget(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("asks", func(r run) {
			time.Sleep(5 * time.Second)
			r.asks("q-1", elicit)
			r.answers("q-1")
			r.end(`{"content":[]}`)
		})
		a := taskAsking("asks")
		w.after("slow", 2*time.Second)
		w.becomes(tasking("slow"))
		var made task
		for _, step := range []struct {
			name          string
			do            func()
			reads, writes int
		}{
			{"a call that becomes a task", func() { made = w.becomes(a) }, 1, 0},
			{"working", func() { w.get(made) }, 2, 0}, // and what Track costs
			{"asking", func() { time.Sleep(5 * time.Second); w.get(made) }, 3, 0},
			{"an answer", func() { w.acked(made.of("tasks/update", `,"inputResponses":{"q-1":`+accept+`}`)) }, 3, 1},
			{"completed", func() { time.Sleep(time.Second); w.get(made) }, 2, 0},
			{"cancelled", func() { w.acked(made.of("tasks/cancel", "")) }, 1, 0},
			{"of somebody else", func() { w.do(task{TaskID: "t"}.of("tasks/get", "").request()) }, 0, 0},
		} {
			if n := w.counted(step.do); n.Reads != step.reads || n.Writes != step.writes {
				t.Errorf("%s: %d reads and %d writes (%v), want %d and %d", step.name, n.Reads, n.Writes, n.Calls, step.reads, step.writes)
			}
		}
	})
}

package native_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// asked returns the ids of the questions among messages, by method.
func asked(t testing.TB, messages []string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, raw := range messages {
		m, err := wire.Parse([]byte(raw))
		commontest.OK(t, err)
		if m.Kind == wire.Request {
			out[m.Method], _ = wire.String(m.ID)
		}
	}
	return out
}

// results returns answers to questions, by method.
func results() map[string]string {
	return map[string]string{
		"elicitation/create":     `{"action":"accept","content":{"name":"Ada"}}`,
		"sampling/createMessage": `{"role":"assistant","content":{"type":"text","text":"4"},"model":"m1"}`,
		"roots/list":             `{"roots":[{"uri":"file:///r"}]}`,
	}
}

func TestQuestionsAreAnsweredToAnotherProcess(t *testing.T) {
	for what, want := range map[string]string{
		"form": "accept Ada kept", "sample": "m1 kept", "roots": "file:///r kept", "form,sample,roots": "accept Ada; m1; file:///r kept",
	} {
		t.Run(what, func(t *testing.T) {
			onEachStore(t, func(t *testing.T, w *world) {
				w.limits.Hold = 1 // the client is sent away at once
				c := w.legacy(everything)
				first := c.tool("ask", `{"text":"`+what+`"}`)
				questions := asked(t, first.messages(t))
				commontest.EqualIn(t, "questions", strings.Count(what, ",")+1, len(questions))
				for method, id := range questions {
					a := c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":%s}`, id, results()[method]))
					commontest.EqualIn(t, "an answer got", http.StatusAccepted, a.status)
				}
				w.work()
				commontest.Equal(t, want, textOf(t, c.poll(first.lastID(t)).last(t)))
				w.empty()
			})
		})
	}
}

// empty asserts that no work is left in the store.
func (w *world) empty() {
	w.t.Helper()
	store := w.open()
	due, err := store.Due(w.t.Context())
	if err != nil || len(due) > 0 {
		w.t.Errorf("the store has work left for %v, %v; want none", due, err)
	}
}

func TestClientThatCannotBeAskedIsNotAsked(t *testing.T) {
	w := memory(t)
	if got := w.legacy(`{}`).tool("ask", `{"text":"form"}`).last(t); !strings.Contains(got, `"code":-32603`) || !strings.Contains(got, "elicitation") {
		t.Errorf("legacy: %s", got)
	}
	if got := w.modern("tools/call", "ask", `"name":"ask","arguments":{"text":"form"},`, `{}`); got.status != 400 || !strings.Contains(got.body, `"code":-32021`) {
		t.Errorf("modern: %d %s", got.status, got.body)
	}
	w.empty()
}

func TestModernClientIsAskedAndCallsAgainAnHourLater(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		first := []byte(w.modernTool("ask", `{"text":"form,roots"}`, "").last(t))
		commontest.Equal(t, `"input_required"`, string(wire.Lookup(first, "result", "resultType")))
		commontest.EqualIn(t, "content", "", string(wire.Lookup(first, "result", "content")))
		state := wire.Lookup(first, "result", "requestState")
		commontest.EqualIn(t, "the server's state is not sealed", false, strings.Contains(string(state), "kept"))
		counting := storagetest.NewCounting(w.open())
		w.open = func() storage.Store { return counting }
		time.Sleep(time.Hour)
		if calls := counting.Counts().Calls; len(calls) > 0 || len(w.invoked) > 0 || len(w.due()) > 0 {
			t.Errorf("while the user thinks: %v, %v", calls, w.invoked)
		}
		again := w.modernTool("ask", `{"text":"form,roots"}`, `"requestState":`+string(state)+`,"inputResponses":{"form":`+
			results()["elicitation/create"]+`,"roots":`+results()["roots/list"]+`},`)
		commontest.Equal(t, "accept Ada; file:///r kept", textOf(t, again.last(t)))
	})
}

func TestQuestionThatNobodyAnswersEndsTheCall(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		c := w.legacy(everything)
		first := c.tool("ask", `{"text":"form"}`)
		time.Sleep(w.hosted.AnswerTimeout - time.Minute)
		w.sweep()
		commontest.EqualIn(t, "invocations before its time is over", 0, len(w.invoked))
		time.Sleep(2 * time.Minute)
		w.sweep()
		commontest.Contains(t, "", "answer_timeout_sec", c.poll(first.lastID(t)).last(t))
		w.empty()
	})
}

func TestJobPausesAndFinishesByAlarm(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		c := w.legacy(`{}`)
		first := c.post(toolCall("1", "job", `{}`, `,"_meta":{"progressToken":"p"}`))
		if got := first.messages(t); len(got) != 1 || !strings.Contains(got[0], "progress") {
			t.Fatalf("got %q", got)
		}
		begun := time.Now()
		for range 2 {
			due := w.due()
			if len(due) != 1 {
				t.Fatalf("%d alarms", len(due))
			}
			w.handle(due[0]) // too soon: it is set again
			if due = w.due(); len(due) != 1 {
				t.Fatalf("an alarm that came too soon is gone")
			}
			time.Sleep(time.Until(due[0].At))
			w.handle(due[0])
			w.handle(due[0]) // twice
		}
		commontest.Equal(t, "finished", textOf(t, c.poll(first.lastID(t)).last(t)))
		if took := time.Since(begun); took < 90*time.Minute {
			t.Errorf("it took %s", took)
		}
		w.empty()
	})
}

func TestModernClientThatGoesCancels(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		begun := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(3*time.Second, cancel)
		meta := `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
		r := request("POST", toolCall("1", "steps", `{"n":100,"millis":1000}`, meta),
			"MCP-Protocol-Version", wire.V20260728, "Mcp-Method", "tools/call", "Mcp-Name", "steps").WithContext(ctx)
		w.do(r)
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("it went on for %s", took)
		}
		w.empty()
	})
}

// A cancel in another process may write the end of a call before the call's item exists, and a
// function that ends a session may die before it ends the calls. The call must not go on after its
// pause.
func TestCallThatHasEndedDoesNotGoOnAfterItsPause(t *testing.T) {
	for what, ends := range map[string]func(ctx context.Context, store storage.Store, a storage.Address) error{
		"the call": func(ctx context.Context, store storage.Store, a storage.Address) error {
			return (sessions.Publisher{Store: store}).Fail(ctx, a, &wire.Error{Code: wire.CodeCancelled, Message: "cancelled"}, time.Time{})
		},
		"its session": func(ctx context.Context, store storage.Store, a storage.Address) error {
			s, _, err := store.Load(ctx, a.Session, "")
			s.State = storage.Ended
			return errors.Join(err, store.Save(ctx, s))
		},
	} {
		t.Run(what, timed(func(t *testing.T, w *world) {
			c := w.legacy(`{}`)
			c.tool("job", `{}`)
			store := w.open()
			items, err := store.Items(t.Context(), storage.BoxFor("acme", "demo"))
			if err != nil || len(items) != 1 {
				t.Fatalf("items are %v, %v", items, err)
			}
			commontest.OK(t, ends(t.Context(), store, items[0].Address))
			time.Sleep(time.Hour)
			for _, a := range w.due() {
				w.handle(a)
			}
			commontest.EqualIn(t, "it was executed, and pauses again", 0, len(w.due()))
			w.empty()
		}))
	}
}

const cancelled = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`

// A call that has begun may have done something, whether it is executed now, asks or pauses. A call of
// less than a second has left no trace yet.
func TestCancelAndDeleteEndACall(t *testing.T) {
	steps := toolCall("1", "steps", `{"n":1000,"millis":1000}`, "")
	for name, c := range map[string]struct {
		call  string
		after time.Duration
	}{
		"begun":    {steps, 300 * time.Millisecond},
		"executed": {steps, 3 * time.Second},
		"asks":     {toolCall("1", "ask", `{"text":"form"}`, ""), 3 * time.Second},
		"pauses":   {toolCall("1", "job", `{}`, ""), 3 * time.Second},
	} {
		for by, code := range map[string]string{"cancel": `"code":-32800`, "delete": `"code":-32010`} {
			t.Run(name+", "+by, timed(func(t *testing.T, w *world) {
				l, store := w.legacy(everything), w.open()
				first := make(chan answer, 1)
				go func() { first <- l.post(c.call) }()
				time.Sleep(c.after)
				items, err := store.Items(t.Context(), storage.BoxFor("acme", "demo"))
				commontest.OK(t, err)
				begun := time.Now()
				if by == "cancel" {
					commontest.EqualIn(t, "a cancel is answered with", http.StatusAccepted, l.post(cancelled).status)
				} else {
					commontest.Equal(t, http.StatusNoContent, l.do(l.request("DELETE", "")).status)
				}
				end := (<-first).body
				if took := time.Since(begun); took > 4*time.Second {
					t.Errorf("it went on for %s", took)
				}
				for _, it := range items {
					page, err := store.Read(t.Context(), it.Address.Session, it.ID, 0, 100)
					if err != nil || !page.Final() {
						t.Fatalf("the call has not ended: %v", err)
					}
					end = string(page.Events[len(page.Events)-1].Raw)
				}
				commontest.Contains(t, "the end", code, end)
				w.empty()
				commontest.EqualIn(t, "alarms are left", 0, len(w.due()))
			}))
		}
	}
}

func TestAWebSocketClientIsToldWhatItsServerSaysOutsideOfRequests(t *testing.T) {
	w := memory(t)
	w.hosted.Make = news
	w.socket(`{}`).send(t, toolCall("1", "say", "{}", ""))
	w.work()
	commontest.Contains(t, "the connection got", `"data":"hello"`, strings.Join(w.posts(), "\n"))
}

func TestWebSocketAndEventStreamAreExecutedApart(t *testing.T) {
	w := memory(t)
	s := w.socket(everything)
	s.send(t, toolCall("1", "ask", `{"text":"form"}`, ""))
	commontest.EqualIn(t, "the function waited", 0, len(w.posts()))
	w.work()
	questions := asked(t, w.posts())
	s.send(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":%s}`, questions["elicitation/create"], results()["elicitation/create"]))
	w.work()
	if got := w.posts(); len(got) != 1 || textOf(t, got[0]) != "accept Ada kept" {
		t.Errorf("got %q", got)
	}
	w.empty()
}

func TestAnswerWhoseInvocationIsLostIsFoundByTheSweep(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		c := w.legacy(everything)
		first := c.tool("ask", `{"text":"form"}`)
		c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":{"action":"decline"}}`, asked(t, first.messages(t))["elicitation/create"]))
		w.invoked = nil
		time.Sleep(time.Minute)
		w.sweep()
		w.work()
		commontest.Equal(t, "decline <nil> kept", textOf(t, c.poll(first.lastID(t)).last(t)))
	})
}

const knowsTasks = `{"elicitation":{"form":{}},"extensions":{"io.modelcontextprotocol/tasks":{}}}`

// task makes a call of a modern client that becomes a task and asks its client. It returns
// the task's name and the key of the question.
func (w *world) task(tool string) (name, key string) {
	w.t.Helper()
	created := w.modern("tools/call", tool, `"name":"`+tool+`","arguments":{"text":"form"},`, knowsTasks).last(w.t)
	name, _ = wire.String(wire.Lookup([]byte(created), "result", "taskId"))
	if name == "" {
		w.t.Fatalf("no task: %s", created)
	}
	w.work()
	got := w.ofTask("tasks/get", name, "")
	m, err := wire.Parse([]byte(got))
	commontest.OK(w.t, err)
	_, rest, _ := strings.Cut(string(wire.Lookup(m.Result, "inputRequests")), `{"`)
	if key, _, _ = strings.Cut(rest, `"`); key == "" {
		w.t.Fatalf("the task does not ask: %s", got)
	}
	return name, key
}

func (w *world) ofTask(method, name, params string) string {
	w.t.Helper()
	a := w.modern(method, name, `"taskId":"`+name+`",`+params, knowsTasks)
	commontest.EqualIn(w.t, method+" was answered with", http.StatusOK, a.status)
	return a.last(w.t)
}

// A function that executes a call itself must keep the response open until the call has ended. So
// the call becomes no task, however long it takes.
func TestACallThatItsOwnFunctionExecutesBecomesNoTask(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.apart = false
		got := w.modern("tools/call", "steps", `"name":"steps","arguments":{"n":1,"millis":60000},`, knowsTasks)
		commontest.Equal(t, "done", textOf(t, got.last(t)))
	})
}

func asksAndWorks(_ context.Context, s native.Session) (*mcp.Server, error) {
	server := mcp.NewServer(&mcp.Implementation{Name: "demo"}, s.Options())
	tool(server, "slow", func(ctx context.Context, r *mcp.CallToolRequest, in words) (*mcp.CallToolResult, error) {
		if len(r.Params.InputResponses) > 0 {
			select {
			case <-time.After(5 * time.Minute):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return ask(ctx, r, in)
	})
	return server, nil
}

// A client answers, or asks for the state of its task. The function that takes that
// message does not wait for the round that then begins.
func TestAnswerToATaskIsTakenWhileItsNextRoundIsExecuted(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.hosted.Make = asksAndWorks
		name, key := w.task("slow")
		begun := time.Now()
		w.ofTask("tasks/update", name, `"inputResponses":{"`+key+`":`+results()["elicitation/create"]+`},`)
		if took := time.Since(begun); took > time.Second {
			t.Errorf("tasks/update was answered after %s", took)
		}
		w.work()
		commontest.Contains(t, "", `accept Ada kept`, w.ofTask("tasks/get", name, ""))
		w.empty()
	})
}

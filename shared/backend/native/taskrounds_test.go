package native_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

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

// The function that stored the answer to a task has died. The sweep does not execute the
// next round itself, because it does not have the servers.
func TestAnswerToATaskThatNobodyHandedOverIsFoundByTheSweep(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		name, key := w.task("ask")
		raw := `{"jsonrpc":"2.0","id":"` + key + `","result":` + results()["elicitation/create"] + `}`
		id := sessions.PinnedID(sessions.Caller{Tenant: "acme", Principal: "ada", Server: sessions.Server{Name: "demo"}})
		_, err := w.open().PutAnswer(t.Context(), storage.Answer{Session: id, Question: key, Raw: []byte(raw)})
		commontest.OK(t, err)
		hosted := w.hosted
		w.hosted.Make = nil
		w.sweep()
		synctest.Wait()
		w.hosted = hosted
		w.work()
		commontest.Contains(t, "", `accept Ada kept`, w.ofTask("tasks/get", name, ""))
	})
}

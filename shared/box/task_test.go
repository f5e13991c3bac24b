package box

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// takeTasks is a server with tasks of 2025-11-25. Its tools run only as tasks, except
// those whose name says otherwise.
func (f *fake) takeTasks(m wire.Message) {
	name, _ := wire.String(wire.Lookup(m.Params, "name"))
	task := wire.Lookup(m.Params, "task")
	switch {
	case m.Method == wire.MethodInitialize:
		answer(m.ID, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}},"serverInfo":{"name":"fake","version":"1"}}`)
	case m.Method == wire.MethodToolsList && wire.Lookup(m.Params, "cursor") == nil:
		answer(m.ID, `{"tools":[{"name":"works","execution":{"taskSupport":"required"}, "x":1e2},{"name":"b","execution":{"taskSupport":"optional"}},{"name":"c"}],"nextCursor":"n"}`)
	case m.Method == wire.MethodToolsList:
		answer(m.ID, `{"tools":[{"name":"asks","execution":{"taskSupport":"required"}},{"name":"hangs","execution":{"taskSupport":"required"}},{"name":"makes no task","execution":{"taskSupport":"required"}}]}`)
	case m.Method == wire.MethodToolsCall && name == "no such tool":
		say(string(wire.ErrorResponse(m.ID, &wire.Error{Code: wire.CodeMethodNotFound, Message: "no such tool"})))
	case m.Method == wire.MethodToolsCall && name == "changes":
		say(string(wire.NewNotification(wire.NotifyToolsChanged, nil)))
		answer(m.ID, `{}`)
	case m.Method == wire.MethodToolsCall && name == "error":
		answer(m.ID, `{"isError":true,"content":[{"type":"text","text":"MCP error -32601: of another server"}]}`)
	case m.Method == wire.MethodToolsCall && name == "works" && task == nil: // as TypeScript's SDK says it
		answer(m.ID, `{"isError":true,"content":[{"type":"text","text":"MCP error -32601: requires a task"}]}`)
	case m.Method == wire.MethodToolsCall && name != "plain" && task == nil:
		say(string(wire.ErrorResponse(m.ID, &wire.Error{Code: wire.CodeMethodNotFound, Message: "requires a task"})))
	case m.Method == wire.MethodToolsCall && name == "makes no task":
	case m.Method == wire.MethodToolsCall && task != nil:
		f.asks["token"] = wire.Lookup(m.Params, "_meta", "progressToken")
		f.asks["tool"] = json.RawMessage(`"` + name + `"`)
		answer(m.ID, `{"task":{"taskId":"t-1","status":"working","createdAt":"2026-01-01T00:00:00Z","ttl":null}}`)
		say(`{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"taskId":"t-1","status":"working"}}`)
	case m.Method == wire.MethodTasksResult:
		f.finish(m)
	default:
		f.takeLegacy(m)
	}
}

// finish answers tasks/result as the name of the tool says.
func (f *fake) finish(m wire.Message) {
	switch tool, _ := wire.String(f.asks["tool"]); tool {
	case "works":
		say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + string(f.asks["token"]) + `,"progress":1}}`)
		answer(m.ID, `{"content":[],"done":`+string(wire.Lookup(m.Params, "taskId"))+`}`)
	case "asks":
		f.asks["q"] = m.ID
		say(`{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t-1"}}}}`)
		line, _ := f.in.ReadBytes('\n')
		f.seen = append(f.seen, line)
		answer(m.ID, `{"heard":`+strings.TrimSpace(string(line))+`}`)
	case "hangs":
	}
}

func TestToolThatRunsAsATaskOnlyIsRunAsOne(t *testing.T) {
	r := newRig(t, "tasks")
	stream := r.deliver(`{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"works","arguments":{"n":9007199254740993},"_meta":{"progressToken":"p"}}}`)
	commontest.EqualIn(t, "the first event", `"p"`, string(wire.Lookup(r.event(t, stream).Raw, "params", "progressToken")))
	commontest.Equal(t, `{"content":[],"done":"t-1"}`, string(r.result(stream)))
	seen := r.seen()
	want := []string{wire.MethodInitialize, wire.NotifyInitialized, wire.MethodToolsCall, wire.MethodToolsList, wire.MethodToolsCall, wire.MethodTasksResult}
	commontest.SameIn(t, "the server was told", want, methods(seen))
	again := seen[4]
	if got := string(wire.Lookup(again, "params", "arguments", "n")); got != "9007199254740993" || wire.Lookup(again, "params", "task", "ttl") == nil {
		t.Errorf("it was called as a task by %s", again)
	}
	ids := []string{string(wire.Lookup(seen[2], "id")), string(wire.Lookup(again, "id")), string(wire.Lookup(seen[5], "id"))}
	slices.Sort(ids)
	commontest.EqualIn(t, "ids were used twice", 3, len(slices.Compact(ids)))
	r.none(t, "") // clients do not see what the server reports about its task
}

func TestClientsAreNotToldOfTasksOfTheLegacyEra(t *testing.T) {
	r := newRig(t, "tasks")
	init := r.result(r.deliver(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`))
	want := `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"fake","version":"1"}}`
	commontest.EqualIn(t, "initialize is answered", want, string(init))
	commontest.EqualIn(t, "the record", want, string(find(t, r.recorder, "the handshake", isHandshake).Payload))
	list := r.result(r.deliver(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`))
	commontest.EqualIn(t, "the list", `{"tools":[{"name":"works","execution":{"taskSupport":"optional"}, "x":1e2},{"name":"b","execution":{"taskSupport":"optional"}},{"name":"c"}],"nextCursor":"n"}`, string(list))
}

func TestToolThatIsNoTaskIsCalledOnce(t *testing.T) {
	r := newRig(t, "tasks")
	commontest.Equal(t, `{"echo":{}}`, string(r.result(r.call("1", "plain", `{}`))))
	commontest.EqualIn(t, "code", wire.CodeMethodNotFound, r.fails(r.call("2", "no such tool", `{}`), "", "no such tool").Code)
	for id := range 2 {
		commontest.Contains(t, "", "of another server", string(r.result(r.call(strconv.Itoa(3+id), "error", `{}`))))
	}
	want := []string{
		wire.MethodInitialize, wire.NotifyInitialized, wire.MethodToolsCall, wire.MethodToolsCall,
		wire.MethodToolsList, wire.MethodToolsList, wire.MethodToolsCall, wire.MethodToolsCall,
	}
	commontest.SameIn(t, "the server was told", want, methods(r.seen()))
}

func TestToolsThatChangedAreListedAgain(t *testing.T) {
	r := newRig(t, "tasks")
	r.fails(r.call("1", "no such tool", `{}`), "", "no such tool")
	r.result(r.call("2", "changes", `{}`))
	commontest.Equal(t, `{"content":[],"done":"t-1"}`, string(r.result(r.call("3", "works", `{}`))))
	got := methods(r.seen())
	want := []string{wire.MethodToolsCall, wire.MethodToolsList, wire.MethodToolsCall, wire.MethodTasksResult}
	commontest.SameIn(t, "after the change the server was told", want, got[len(got)-len(want):])
}

func TestTaskAsksTheClientOfItsCall(t *testing.T) {
	r := newRig(t, "tasks")
	stream := r.call("1", "asks", `{}`)
	q := r.event(t, stream)
	id, _ := wire.String(wire.Lookup(q.Raw, "id"))
	if method, _ := wire.String(wire.Lookup(q.Raw, "method")); method != wire.MethodElicit {
		t.Fatalf("asked %s", q.Raw)
	}
	r.Answer("s", id, []byte(`{"jsonrpc":"2.0","id":"`+id+`","result":{"action":"accept"}}`))
	commontest.EqualIn(t, "the task", `"accept"`, string(wire.Lookup(r.result(stream), "heard", "result", "action")))
}

func TestTaskEndsWithItsCall(t *testing.T) {
	r := newRig(t, "tasks")
	stream := r.call("1", "hangs", `{}`)
	commontest.Eventually(t, "it waits for the task", func() bool { return slices.Contains(methods(r.seen()), wire.MethodTasksResult) })
	r.deliver(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"enough"}}`)
	r.failure(stream)
	seen := r.seen()
	last := seen[len(seen)-1]
	if got := methods(seen); got[len(got)-1] != wire.MethodTasksCancel || slices.Contains(got, wire.NotifyCancelled) || string(wire.Lookup(last, "params", "taskId")) != `"t-1"` {
		t.Errorf("the server was told %v", got)
	}
}

func TestCallThatIsNoTaskYetIsCancelledByItsNewID(t *testing.T) {
	r := newRig(t, "tasks")
	stream := r.call("1", "makes no task", `{}`)
	var id json.RawMessage
	commontest.Eventually(t, "it is called as a task", func() bool {
		for _, m := range r.seen() {
			if wire.Lookup(m, "params", "task") != nil {
				id = wire.Lookup(m, "id")
			}
		}
		return id != nil
	})
	r.deliver(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	r.failure(stream)
	commontest.SameIn(t, "the server was told to end", []string{`{"requestId":` + string(id) + `}`}, r.toServer("s", wire.NotifyCancelled))
}

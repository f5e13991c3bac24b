package box

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// Tasks of 2025-11-25 stay between the box and the process; clients do not see them. Such a task
// lives in the memory of the process, and a client that polls for it would keep the process awake.
// Some tools can only be called as a task (execution.taskSupport "required"). For a call of such a
// tool the box makes a task and asks for its result at once. The process answers tasks/result when
// the task has ended, and may ask questions meanwhile. The box turns a cancellation into
// tasks/cancel.
//
// The box learns which tools need a task from the lists of tools that pass through it. If a call
// of an unknown tool ends in an error, the box lists the tools itself, once for each process. A
// tool that needs a task cannot have run without one, so the box may call it again.

// legacyTasks is what the box knows about a process that supports tasks of 2025-11-25.
type legacyTasks struct {
	p      *process
	needed map[string]bool // tools that can be called as a task only
	all    bool            // needed is complete
}

// unconfirmedCall is a call that ended in an error and whose tool the box does not know yet.
// Before the client gets the error, the box finds out whether the tool needs a task.
type unconfirmedCall struct {
	r     *request
	end   wire.Message // the error, or the result that says isError
	pages *wire.Pages  // the pages of tools/list that the box has read
}

func (t *legacyTasks) outgoing(r *request, line []byte) []byte {
	if r.method != wire.MethodToolsCall || r.passed != nil {
		return line
	}
	r.line = line
	if !t.needs(r) {
		return line
	}
	r.isTask = true
	return bridge.AsLegacyTask(line, t.life())
}

// needs reports whether the box must turn a call into a task.
func (t *legacyTasks) needs(r *request) bool {
	name, _ := wire.String(wire.Lookup(r.line, "params", "name"))
	return t.needed[name] && wire.Lookup(r.line, "params", "task") == nil
}

// response handles a response that belongs to a task. response returns false if the response must
// go to the client.
func (t *legacyTasks) response(r *request, m wire.Message) bool {
	switch {
	case r.method != wire.MethodToolsCall:
		return false
	case !r.isTask:
		failed := m.Error != nil || string(wire.Lookup(m.Result, "isError")) == "true"
		if !failed || t.all || wire.Lookup(r.line, "params", "task") != nil {
			return false
		}
		t.askTools(unconfirmedCall{r, m, &wire.Pages{}}, nil)
		return true
	case r.taskID != nil:
		return false // m is the result of the task, for the client
	}
	if r.taskID = wire.Lookup(m.Result, "task", "taskId"); r.taskID == nil {
		return false
	}
	t.sendAgain(r, wire.NewRequest(r.id, wire.MethodTasksResult, taskParams(r)))
	return true
}

func taskParams(r *request) json.RawMessage {
	return json.RawMessage(`{"taskId":` + string(r.taskID) + `}`)
}

func (t *legacyTasks) askTools(d unconfirmedCall, cursor json.RawMessage) {
	var params json.RawMessage
	if cursor != nil {
		params = json.RawMessage(`{"cursor":` + string(cursor) + `}`)
	}
	t.p.ask(wire.MethodToolsList, params, func(m wire.Message) { t.toolsTold(d, m) })
}

// toolsTold handles a page of the tools that askTools has asked for: it calls the tool again as a
// task, asks for the next page, or sends the client the error.
func (t *legacyTasks) toolsTold(d unconfirmedCall, m wire.Message) {
	t.learn(m.Result)
	cursor, err := d.pages.Next(m.Result)
	t.all = t.all || m.Error == nil && cursor == nil
	switch {
	case t.p.conv.requests[d.r.number] != d.r: // the request has ended meanwhile
	case t.needs(d.r):
		d.r.isTask = true
		t.sendAgain(d.r, bridge.AsLegacyTask(d.r.line, t.life()))
	case err == nil && cursor != nil:
		t.askTools(d, cursor)
	default:
		t.p.conv.response(d.end)
	}
}

// learn records which tools in a list need a task.
func (t *legacyTasks) learn(list json.RawMessage) {
	for _, name := range bridge.LegacyNeed(list) {
		t.needed[name] = true
	}
}

// notification handles a notification about tools or tasks, and returns true if clients must not
// get it.
func (t *legacyTasks) notification(m wire.Message) bool {
	if m.Method == wire.NotifyToolsChanged {
		t.needed, t.all = map[string]bool{}, false
	}
	return m.Method == wire.NotifyTaskStatus
}

// life returns how long the process must keep a task: as long as the client may wait for the call,
// 0 if that is unlimited.
func (t *legacyTasks) life() time.Duration {
	s := t.p.box.server
	if s.ToolTimeout < 0 {
		return 0
	}
	return s.ToolTimeout + s.AnswerTimeout
}

// sendAgain sends a request in another form under a new number, with the same progress token.
func (t *legacyTasks) sendAgain(r *request, line []byte) {
	line, _ = wire.Replace(line, strconv.AppendInt(nil, t.p.conv.renumber(r), 10), "id")
	if !t.p.write(wire.Compact(line)) {
		t.p.conv.end(r, t.p.queueFull().response(r.id))
	}
}

// cancel makes the process stop working on a request that is a task. cancel returns false for any
// other request.
func (t *legacyTasks) cancel(r *request) bool {
	if r.taskID == nil {
		return false
	}
	t.p.ask(wire.MethodTasksCancel, taskParams(r), nil)
	return true
}

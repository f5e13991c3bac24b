package box

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Tasks of 2025-11-25 are between the box and the process. Clients are not told of
// them: a task is in the memory of a process, and who polls for it would keep that
// awake. A tool that can be called as a task only (execution.taskSupport "required") is
// called as one in its client's place, and its result is asked for at once: tasks/result
// is answered when the task is over, and brings what it asks meanwhile. To the client it
// is a call like any other, with its progress, its questions and its deadline; a cancel
// becomes tasks/cancel.
//
// Which tools these are the lists say that pass by. A call that ends in an error before
// that has the box list the tools itself, once in the life of the process: only such a
// tool has certainly not run, and may be called again.

// task is what a tools/call in flight has become in the process.
type task struct {
	id json.RawMessage // nil until the process has named it
}

// legacyTasks is what is known of a process with tasks.
type legacyTasks struct {
	p      *process
	needed map[string]bool // tools that can be called as a task only
	all    bool            // all tools are known
}

// doubt is a call of a tool of which nothing is known. It has ended in an error.
type doubt struct {
	r   *request
	end wire.Message
}

// outgoing is what is sent for a request.
func (t *legacyTasks) outgoing(r *request, line []byte) []byte {
	if r.method != wire.MethodToolsCall || r.passed != nil {
		return line
	}
	r.line = line
	if !t.needs(r) {
		return line
	}
	r.task = &task{}
	return bridge.AsLegacyTask(line, t.life())
}

// needs says that a call has to be a task, and is not one by its client's own wish.
func (t *legacyTasks) needs(r *request) bool {
	name, _ := wire.String(wire.Lookup(r.line, "params", "name"))
	return t.needed[name] && wire.Lookup(r.line, "params", "task") == nil
}

// response takes a response that is about a task. It is false for one that is the
// client's.
func (t *legacyTasks) response(r *request, m wire.Message) bool {
	switch {
	case r.method != wire.MethodToolsCall:
		return false
	case r.task == nil:
		failed := m.Error != nil || string(wire.Lookup(m.Result, "isError")) == "true"
		if !failed || t.all || wire.Lookup(r.line, "params", "task") != nil {
			return false
		}
		t.askTools(doubt{r, m}, nil)
		return true
	case r.task.id != nil:
		return false // the result
	}
	if r.task.id = wire.Lookup(m.Result, "task", "taskId"); r.task.id == nil {
		return false
	}
	t.sendAgain(r, wire.NewRequest(r.id, wire.MethodTasksResult, r.task.params()))
	return true
}

// askTools asks for a page of the list of tools.
func (t *legacyTasks) askTools(d doubt, cursor json.RawMessage) {
	var params json.RawMessage
	if cursor != nil {
		params = json.RawMessage(`{"cursor":` + string(cursor) + `}`)
	}
	t.p.ask(wire.MethodToolsList, params, func(m wire.Message) { t.toolsTold(d, m) })
}

// toolsTold takes a page that was asked for.
func (t *legacyTasks) toolsTold(d doubt, m wire.Message) {
	t.learn(m.Result)
	cursor := wire.Lookup(m.Result, "nextCursor")
	t.all = t.all || m.Error == nil && cursor == nil
	switch {
	case t.p.conv.requests[d.r.number] != d.r: // it has ended meanwhile
	case t.needs(d.r):
		d.r.task = &task{}
		t.sendAgain(d.r, bridge.AsLegacyTask(d.r.line, t.life()))
	case cursor != nil:
		t.askTools(d, cursor)
	default:
		t.p.conv.response(d.end)
	}
}

// learn notes what a list says of tools.
func (t *legacyTasks) learn(list json.RawMessage) {
	for _, name := range bridge.LegacyNeed(list) {
		t.needed[name] = true
	}
}

// listed is a list of tools for clients, who can call all of them.
func (t *legacyTasks) listed(r *request, m wire.Message) wire.Message {
	if r.method == wire.MethodToolsList && m.Error == nil {
		t.learn(m.Result)
		m.Result = bridge.WithoutLegacyNeed(m.Result)
	}
	return m
}

// notification takes a notification about tools or tasks. It is true for one that
// clients are not told.
func (t *legacyTasks) notification(m wire.Message) bool {
	if m.Method == wire.NotifyToolsChanged {
		t.needed, t.all = map[string]bool{}, false
	}
	return m.Method == wire.NotifyTaskStatus
}

// life is how long the process has to keep a task: for as long as the call can be
// waited for, 0 if that has no end.
func (t *legacyTasks) life() time.Duration {
	s := t.p.box.server
	if s.ToolTimeout < 0 {
		return 0
	}
	return s.ToolTimeout + s.AnswerTimeout
}

// sendAgain sends a request in another form, under another number. Its progress token
// stays the one it had.
func (t *legacyTasks) sendAgain(r *request, line []byte) {
	line, _ = wire.Replace(line, strconv.AppendInt(nil, t.p.conv.again(r), 10), "id")
	if !t.p.write(wire.Compact(line)) {
		t.p.conv.end(r, t.p.deaf().response(r.id))
	}
}

// cancel has the process stop working for a request that has become a task. It is false
// for any other.
func (t *legacyTasks) cancel(r *request) bool {
	if r.task == nil || r.task.id == nil {
		return false
	}
	t.p.ask(wire.MethodTasksCancel, r.task.params(), nil)
	return true
}

// params name the task.
func (t *task) params() json.RawMessage { return json.RawMessage(`{"taskId":` + string(t.id) + `}`) }
